"""A thread that waits for a coroutine on another thread's loop: results, errors, callbacks, Ctrl-C, no leaks."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from ottla.client.blocking.loop import LoopThread
from ottla.client.core.callers_thread import Call, CallersThread
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join(PATIENCE_S)
    running.close()


def test_a_result_and_an_error_come_back(loop: asyncio.AbstractEventLoop) -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> int:
        raise LookupError("nothing there")

    assert Call(answer(), loop).wait() == 42
    with pytest.raises(LookupError, match="nothing there"):
        Call(fail(), loop).wait()


def test_a_coroutine_that_was_cancelled_does_not_cancel_the_thread(loop: asyncio.AbstractEventLoop) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CancelledError):
        Call(cancelled(), loop).wait()


def test_callbacks_run_in_the_waiting_thread_and_may_call_again(loop: asyncio.AbstractEventLoop) -> None:
    callers = CallersThread()
    here = threading.get_ident()

    async def inner() -> str:
        return "inner"

    def callback(name: str) -> tuple[str, int, str]:
        return name, threading.get_ident(), callers.wait(inner(), loop)

    async def outer() -> Any:
        return await callers.run(callback, "outer")

    assert callers.wait(outer(), loop) == ("outer", here, "inner")


def test_an_interrupt_cancels_the_coroutine_and_ends_the_wait(loop: asyncio.AbstractEventLoop) -> None:
    """As Ctrl-C does: a job raises where the signal would."""
    ended = threading.Event()

    async def forever() -> None:
        try:
            call.do(interrupt)
            await asyncio.sleep(3600)
        finally:
            ended.set()

    def interrupt() -> None:
        raise KeyboardInterrupt

    call = Call(forever(), loop)
    with pytest.raises(KeyboardInterrupt):
        call.wait()
    assert ended.wait(PATIENCE_S)


def test_an_interrupt_before_the_coroutine_starts_leaves_no_warning(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Otherwise `ottla consume` ends with a RuntimeWarning if Ctrl-C hits it between two polls."""

    def interrupted(self: Call[Any]) -> None:
        raise KeyboardInterrupt

    async def poll() -> None: ...

    monkeypatch.setattr(Call, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LoopThread().call(poll())
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_an_error_is_freed_with_its_last_reference(loop: asyncio.AbstractEventLoop) -> None:
    """Without the garbage collector: a reference cycle would keep every frame and its objects until then."""

    class SeenError(Exception):
        pass

    async def fail() -> None:
        raise SeenError

    gc.collect()
    gc.disable()
    try:
        try:
            Call(fail(), loop).wait()
        except SeenError as error:
            trace = weakref.ref(error)
        eventually(lambda: trace() is None)  # the loop's thread may hold its last frame for a moment
    finally:
        gc.enable()
