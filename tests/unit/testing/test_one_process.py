"""Tests outside of live, compat and spark must not start processes: every way to start one raises an error."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.one_process import ChildProcessStarted

WAYS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run(["true"], check=False),
    "fork": lambda: os.fork(),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "system": lambda: os.system("true"),
    "multiprocessing, fork": lambda: multiprocessing.get_context("fork").Process(target=int).start(),
    "multiprocessing, spawn": lambda: multiprocessing.get_context("spawn").Process(target=int).start(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_starting_a_process_is_an_error_here(way: str) -> None:
    with pytest.raises(ChildProcessStarted, match="tests/live"):
        WAYS[way]()
