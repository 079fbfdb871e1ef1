"""Benchmarks: ratios on one machine in one run, interleaved, best and median. They never fail a build."""
