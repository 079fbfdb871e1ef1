"""The watchdog of the event loop: a slow step is logged with its cause, and nothing else is."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ottla.broker.broker import Broker
from ottla.broker.monitoring.watchdog import Sample, SlowStep, Watchdog, describe
from ottla.broker.settings.config import load_config
from ottla.protocol.api import ApiKey
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tests.support.waiting import eventually_async

LIMIT_MS = 60
STEP_S = 0.2

Loop = Callable[[], asyncio.AbstractEventLoop]
pytestmark = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["own", "uvloop"])


def run(new_loop: Loop, story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(story, 60))


def block() -> None:
    """Not a computation: that would depend on the CPU, which other tests use too."""
    time.sleep(STEP_S)


async def until_logged(caplog: pytest.LogCaptureFixture, text: str, again: Callable[[], object]) -> str:
    """Repeats a step until a line about it is logged: on a busy machine, some steps do not get the CPU."""
    while not any(text in line for line in caplog.messages):
        again()
        await asyncio.sleep(0.05)
    return next(line for line in caplog.messages if text in line)


async def watched(limit_ms: int = LIMIT_MS, log_interval_ms: int = 0) -> Watchdog:
    watchdog = Watchdog(limit_ms, log_interval_ms)
    watchdog.start()
    # The first heartbeat has to be seen before anything can be late.
    await asyncio.sleep(0.05)
    return watchdog


def test_a_callback_that_blocks_is_named(new_loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        watchdog = await watched()
        loop = asyncio.get_running_loop()
        # On a busy machine, other steps may be logged before it.
        line = await until_logged(
            caplog,
            "by callback tests.unit.broker.monitoring.test_watchdog.block at monitoring/test_watchdog.py:",
            lambda: loop.call_soon(block),
        )
        watchdog.stop()
        assert line.startswith("broker: the event loop was blocked for ")
        assert "ottla.slow.step.ms=60" in line
        assert "which waited for a file or a lock" in line
        assert watchdog.slow_steps >= 1
        assert watchdog.longest_step > LIMIT_MS / 1000

    run(new_loop, story())


def test_a_task_that_blocks_is_named(new_loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    async def reload_everything() -> None:
        block()

    async def story() -> None:
        watchdog = await watched()
        tasks = set()
        line = await until_logged(
            caplog,
            "reload_everything at monitoring/test_watchdog.py:",
            lambda: tasks.add(asyncio.create_task(reload_everything())),
        )
        await asyncio.gather(*tasks)
        watchdog.stop()
        assert " by task " in line
        assert " block < " in line

    run(new_loop, story())


async def talk(
    tmp_path: Path, request: Any, version: int, slow_down: Callable[[Broker], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Sends requests to a real broker, one of whose handlers was made slow, until a slow step is logged."""
    values = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path),
        "ottla.slow.step.ms": str(LIMIT_MS),
        "ottla.slow.step.log.interval.ms": "0",
    }
    broker = Broker(load_config(values))
    await broker.start()
    broker.watch_event_loop()
    host, _, port = broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_request(request.api_key, version, 5, "nightly-report", request))
    await reader.read(4)
    slow_down(broker)
    name = type(request).__name__.removesuffix("Request")
    line = await until_logged(
        caplog,
        f"by {name}",
        lambda: writer.write(encode_request(request.api_key, version, 5, "nightly-report", request)),
    )
    own_port = writer.get_extra_info("sockname")[1]
    assert line.startswith("broker 0: the event loop was blocked for ")
    assert f"by {name} v{version} from /127.0.0.1:{own_port} (client id 'nightly-report') at " in line
    writer.close()
    await broker.stop()


def test_a_request_that_blocks_is_named_with_its_client(
    new_loop: Loop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def slow_down(broker: Broker) -> None:
        route = broker.dispatcher.routes[ApiKey.API_VERSIONS << 16]
        answer = route.handler

        def slow(request: Any, context: Any) -> Any:
            block()
            return answer(request, context)

        route.handler = slow

    run(new_loop, talk(tmp_path, ApiVersionsRequest(), 0, slow_down, caplog))


def test_a_handler_in_its_own_task_is_named_too(
    new_loop: Loop, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An `async def` handler runs in a task of its own: the dispatcher is not on its stack."""

    async def slow(*_: object) -> DescribeGroupsResponse.DescribedGroup:
        block()
        return DescribeGroupsResponse.DescribedGroup()

    def slow_down(broker: Broker) -> None:
        monkeypatch.setattr("ottla.broker.handlers.describe_groups._describe", slow)

    run(new_loop, talk(tmp_path, DescribeGroupsRequest(groups=["a"]), 5, slow_down, caplog))


def test_an_idle_loop_and_short_steps_log_nothing(new_loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        watchdog = await watched(limit_ms=2_000)
        for _ in range(30):
            await asyncio.sleep(0.01)
        watchdog.stop()
        assert watchdog.slow_steps == 0
        assert not caplog.messages
        assert not [thread for thread in threading.enumerate() if thread.name == "ottla-watchdog"]

    run(new_loop, story())


def test_a_limit_of_0_watches_nothing(new_loop: Loop) -> None:
    async def story() -> None:
        watchdog = await watched(limit_ms=0)
        assert not [thread for thread in threading.enumerate() if thread.name == "ottla-watchdog"]
        watchdog.stop()

    run(new_loop, story())


def test_lines_are_limited_and_the_rest_is_counted(new_loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        watchdog = await watched(log_interval_ms=3_600_000)
        while watchdog.slow_steps < 3:
            block()
            await asyncio.sleep(0.03)
        await eventually_async(lambda: bool(caplog.messages))
        watchdog.stop()
        assert len(caplog.messages) == 1

    run(new_loop, story())


def test_a_step_that_did_not_get_the_cpu_is_not_blamed(new_loop: Loop) -> None:
    sample = Sample("Fetch v12", "fetch.py:1 fetch")
    line = describe(SlowStep(2.0, 0.1, 3, cpu_wait_seconds=1.8), [sample], 0.25)
    assert "did not get the CPU" in line
    assert "Fetch" not in line
    # The loop was idle whenever it was looked at: only its timer was late.
    assert "did not get the CPU" in describe(SlowStep(2.0, 0.1, 0), [Sample("", "")], 0.25)
    # It waited, but not for the CPU.
    assert "by Fetch v12 at fetch.py:1 fetch, which waited" in describe(SlowStep(2.0, 0.1, 0), [sample], 0.25)
    # It waited for the CPU most of the time, but would have been too slow anyway.
    busy = describe(SlowStep(2.0, 0.4, 9_000, cpu_wait_seconds=1.5), [sample], 0.25)
    assert "0.40 s of CPU, 1.50 s of waiting for it) by Fetch v12" in busy
    assert "9000 requests were handled meanwhile" in busy
