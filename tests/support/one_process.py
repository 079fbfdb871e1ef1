"""Keeps in-process tests in one process: in some folders, starting a child process fails the test."""

import multiprocessing.util
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

STARTERS: list[tuple[Any, str]] = [
    (subprocess.Popen, "__init__"),
    (os, "fork"),
    (os, "posix_spawn"),
    (os, "system"),
    (multiprocessing.util, "spawnv_passfds"),
]


class ChildProcessStarted(AssertionError):
    """A test that must stay in one process has started another."""


def refuse(name: str) -> Callable[..., NoReturn]:
    def refusing(*arguments: object, **options: object) -> NoReturn:
        raise ChildProcessStarted(f"{name}: tests that start a process belong in tests/live, see docs/testing.md")

    return refusing


@contextmanager
def one_process() -> Iterator[None]:
    """Inside, every way to start a process raises ChildProcessStarted."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STARTERS:
            patch.setattr(owner, name, refuse(f"{owner.__name__}.{name}"))
        yield
