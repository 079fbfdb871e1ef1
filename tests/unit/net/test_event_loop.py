"""The event loop of brokers and clients."""

import asyncio
import contextlib
import sys

import pytest
import uvloop

from ottla.net.event_loop import new_event_loop


def test_uvloop_is_used_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(new_event_loop()) as loop:
        assert isinstance(loop, uvloop.Loop)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with contextlib.closing(new_event_loop()) as loop:
        assert isinstance(loop, asyncio.BaseEventLoop)
