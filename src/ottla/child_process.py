"""Processes that are started from this one: their environment and their memory."""

import os
from pathlib import Path

import ottla


def child_environment() -> dict[str, str]:
    """This process's environment, so that the child imports the same package: also from a checkout."""
    environment = dict(os.environ)
    root = str(Path(ottla.__file__).parent.parent)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if Path(root).name not in ("site-packages", "dist-packages") and root not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([root, *paths])
    return environment


def memory_of(pid: int) -> int | None:
    """Resident memory of a process in bytes; None if it is gone, or without /proc."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
