"""--load N: runs the suite on a machine with a load average of about N.

Half of the load are pytest-xdist workers, the other half are busy loops. Every test then gets the small share of a core
that it would get next to N other processes, and the run still ends within an hour (about 40 minutes for --load 25).
"""

import os
import subprocess
import sys
import threading

import pytest

SAMPLE_SECONDS = 5.0
BUSY_LOOP = """\
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""
"""Ends with the process whose id is its argument."""


def worker_count(load: int | None) -> int:
    """How many workers `--numprocesses auto` starts."""
    if load is not None:
        return load // 2
    # Two more than there are cores: many tests wait for something most of the time.
    return (os.cpu_count() or 1) + 2


class Load:
    """A pytest plugin that keeps the machine busy and reports the load averages of the run."""

    def __init__(self, load: int) -> None:
        if load < 2:
            raise pytest.UsageError(f"--load {load}: the smallest load is 2, one worker and one busy loop")
        self._count = load - worker_count(load)
        self.busy_loops: list[subprocess.Popen[bytes]] = []
        self._samples: list[float] = []
        self._stopped = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLE_SECONDS):
            self._samples.append(os.getloadavg()[0])

    def pytest_sessionstart(self) -> None:
        for _ in range(self._count):
            self.busy_loops.append(subprocess.Popen([sys.executable, "-S", "-c", BUSY_LOOP, str(os.getpid())]))
        self._sampler.start()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._samples:
            mean = sum(self._samples) / len(self._samples)
            terminalreporter.write_line(
                f"load average of the last minute: mean {mean:.1f}, max {max(self._samples):.1f}"
            )

    def pytest_unconfigure(self) -> None:
        self._stopped.set()
        for process in self.busy_loops:
            process.kill()
        for process in self.busy_loops:
            process.wait()
