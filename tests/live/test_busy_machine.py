"""`./run test --load N`: tests on a busy machine."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.load import BUSY_LOOP, Load, worker_count
from tests.support.waiting import eventually


def test_half_of_the_load_are_workers_and_half_are_busy_loops() -> None:
    load = Load(5)
    load.pytest_sessionstart()
    try:
        assert worker_count(5) + len(load.busy_loops) == 5
        assert all(process.poll() is None for process in load.busy_loops)
    finally:
        load.pytest_unconfigure()
    assert all(process.returncode == -signal.SIGKILL for process in load.busy_loops)


def test_a_busy_loop_ends_with_the_process_that_started_it() -> None:
    starter = (
        "import os, subprocess, sys\n"
        f"loop = [sys.executable, '-S', '-c', {BUSY_LOOP!r}, str(os.getpid())]\n"
        "print(subprocess.Popen(loop, stdout=subprocess.DEVNULL).pid)"
    )
    started = subprocess.run([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, check=True)
    pid = int(started.stdout)
    eventually(lambda: not is_running(pid))


def test_a_load_without_room_for_a_test_is_rejected() -> None:
    with pytest.raises(pytest.UsageError, match="--load 1: the smallest load is 2"):
        Load(1)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
