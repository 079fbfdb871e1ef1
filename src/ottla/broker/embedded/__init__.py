"""Brokers in child processes, for tests and programs: one, a cluster, or with TLS and users."""
