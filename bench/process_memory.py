"""The resident memory of this process. Imports nothing heavy: some suites measure the memory that imports take."""

import os


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
