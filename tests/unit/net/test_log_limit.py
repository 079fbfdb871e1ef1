"""How often similar lines are logged."""

import doctest
import logging
from typing import Any

import pytest

from ottla.net import log_limit
from ottla.net.log_limit import LINE_MAX, LogLimit, safe_to_log
from ottla.net.server.server import Connection, Disconnect
from tests.support.wire.frame_server import Run, connected, frame, serving


def test_lines_beyond_the_limit_are_counted_and_reported_with_the_next_one() -> None:
    limit = LogLimit(lines=2, interval_s=10.0)
    assert [limit.allows(float(second)) for second in range(5)] == [True, True, False, False, False]
    assert limit.suppressed == 3
    assert limit.allows(10.0)
    assert limit.suffix == " (3 more such lines were not logged)"
    assert limit.allows(10.5)
    assert limit.suffix == ""
    assert not limit.allows(11.0)


def test_peers_cannot_fill_the_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Every connection is closed for a reason, but only some of the reasons are logged."""

    def refuse(request: bytes | memoryview, connection: Connection) -> Any:
        raise Disconnect("unknown api key 9999")

    async def story() -> None:
        async with serving(refuse) as (_, port):
            for _ in range(50):
                async with connected(port) as (reader, writer):
                    writer.write(frame(b"garbage"))
                    assert await reader.read() == b""

    caplog.set_level(logging.INFO, "ottla.net")
    run(story())
    assert len([r for r in caplog.records if "unknown api key 9999" in r.message]) == 20


def test_tracebacks_are_limited_too(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that has found a bug can cause it as often as it likes."""

    def broken(request: bytes | memoryview, connection: Connection) -> Any:
        raise ZeroDivisionError("a bug")

    async def story() -> None:
        async with serving(broken) as (_, port):
            for _ in range(30):
                async with connected(port) as (reader, writer):
                    writer.write(frame(b"x"))
                    assert await reader.read() == b""

    run(story())
    assert len([r for r in caplog.records if r.exc_info]) == 20


def test_a_peer_cannot_write_lines_of_its_own_into_the_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(request: bytes | memoryview, connection: Connection) -> Any:
        raise Disconnect(f"invalid request: {bytes(request).decode()}")

    async def story() -> None:
        async with serving(refuse) as (_, port), connected(port) as (reader, writer):
            writer.write(frame(b"x\n2030-01-01 INFO ottla.security: all is well\x1b[2J"))
            assert await reader.read() == b""

    caplog.set_level(logging.INFO, "ottla.net")
    run(story())
    (message,) = [r.message for r in caplog.records if "invalid request" in r.message]
    assert message.isprintable()
    assert r"x\n2030-01-01" in message
    assert len(safe_to_log("x" * 100_000)) == LINE_MAX + 1
    assert doctest.testmod(log_limit).failed == 0
