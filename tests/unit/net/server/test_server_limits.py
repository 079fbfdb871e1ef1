"""The server with misbehaving peers: invalid frames, idle connections, peers that do not read."""

import asyncio
import logging
import struct
from typing import Any

import pytest

from ottla.net.server.server import Connection, Disconnect, Limits
from tests.support.waiting import eventually_async
from tests.support.wire.frame_server import MIB, Parking, Run, connected, echo, frame, read_frame, serving

# --- bad peers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_an_invalid_frame_size_closes_the_connection_with_one_log_line(
    run: Run, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Spec: R8. Giant and negative lengths."""

    async def story() -> None:
        limits = Limits(max_request_bytes=1000)
        async with serving(echo, limits) as (_, port), connected(port) as (reader, writer), connected(port) as other:
            writer.write(frame(b"fine") + struct.pack(">i", size) + b"rubbish")
            assert await read_frame(reader) == b"fine"
            assert await reader.read() == b""
            other[1].write(frame(b"still here"))
            assert await read_frame(other[0]) == b"still here"

    caplog.set_level(logging.INFO, "ottla.net")
    run(story())
    assert [r.message for r in caplog.records if f"invalid frame size {size} " in r.message]
    assert not [r for r in caplog.records if r.exc_info]


def test_a_size_prefix_alone_gets_little_memory(run: Run) -> None:
    """Spec: R8. A size prefix of 100 MB does not allocate 100 MB."""

    async def story() -> None:
        async with serving(echo) as (server, port), connected(port) as (_, writer):
            writer.write(struct.pack(">i", 100_000_000) + b"x")
            await eventually_async(lambda: server.bytes_in == 5)
            (connection,) = server.connections
            assert 0 < connection.parser.allocated_bytes <= 256 * 1024

    run(story())


def test_a_request_that_the_handler_rejects_closes_only_that_connection(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def picky(request: bytes | memoryview, connection: Connection) -> bytes:
        if bytes(request) == b"garbage":
            raise Disconnect("unknown api key 9999")
        return frame(bytes(request))

    async def story() -> None:
        async with serving(picky) as (_, port), connected(port) as (reader, writer), connected(port) as other:
            writer.write(frame(b"first") + frame(b"garbage") + frame(b"never looked at"))
            assert await read_frame(reader) == b"first"
            assert await reader.read() == b""
            other[1].write(frame(b"ok"))
            assert await read_frame(other[0]) == b"ok"

    caplog.set_level(logging.INFO, "ottla.net")
    run(story())
    assert len([r for r in caplog.records if "unknown api key 9999" in r.message and not r.exc_info]) == 1


def test_an_invalid_request_behind_a_pending_one_does_not_cancel_it(run: Run) -> None:
    async def story() -> None:
        handle = Parking()

        def picky(request: bytes | memoryview, connection: Connection) -> Any:
            if bytes(request) == b"garbage":
                raise Disconnect("garbage")
            return handle(request, connection)

        async with serving(picky) as (_, port), connected(port) as (reader, writer):
            writer.write(frame(b"wait") + frame(b"garbage"))
            await eventually_async(lambda: b"wait" in handle.parked)
            writer.write(b"more" * 100_000)
            handle.release(b"wait")
            assert await read_frame(reader) == b"wait"
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_frame(reader)

    run(story())


def test_a_failing_handler_is_logged_once_with_its_traceback(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def late() -> bytes:
        raise ZeroDivisionError("late")

    def broken(request: bytes | memoryview, connection: Connection) -> Any:
        if bytes(request) == b"late":
            return late()
        raise ZeroDivisionError("at once")

    async def story() -> None:
        async with serving(broken) as (_, port):
            for body in (b"late", b"at once"):
                async with connected(port) as (reader, writer):
                    writer.write(frame(body))
                    assert await reader.read() == b""

    run(story())
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["late", "at once"]


def test_an_incomplete_frame_does_not_keep_an_idle_connection_open(run: Run) -> None:
    async def story() -> None:
        async with serving(echo, Limits(max_idle_ms=80)) as (server, port), connected(port) as (reader, writer):
            writer.write(frame(b"half")[:6])
            assert await reader.read() == b""
            await eventually_async(lambda: not server.connections)

    run(story())


def test_connections_above_the_limit_are_refused(run: Run) -> None:
    async def story() -> None:
        async with serving(echo, Limits(max_connections=1)) as (server, port), connected(port) as (reader, writer):
            writer.write(frame(b"one"))
            assert await read_frame(reader) == b"one"
            async with connected(port) as (second, _):
                assert await second.read() == b""
            writer.write(frame(b"still"))
            assert await read_frame(reader) == b"still"
            assert server.refused == 1

    run(story())


# --- slow readers -----------------------------------------------------------------------------------------


def test_requests_of_a_peer_that_does_not_read_are_held(run: Run) -> None:
    """Spec: R8. Memory stays bounded however much the peer requests."""
    handled = []

    def big(request: bytes | memoryview, connection: Connection) -> bytes:
        handled.append(1)
        return frame(bytes(MIB))

    async def story() -> None:
        async with serving(big) as (server, port), connected(port) as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b"fetch") * 500)
            await eventually_async(lambda: len(handled) > 1)
            await asyncio.sleep(0.1)
            (connection,) = server.connections
            assert len(handled) < 40
            assert connection.transport.get_write_buffer_size() < 4 * MIB
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(500):
                assert len(await read_frame(reader)) == MIB

    run(story())


def test_late_responses_are_not_computed_for_a_peer_that_does_not_read(run: Run) -> None:
    """Spec: R8. Pipelined fetches are answered one by one, so their data is never in memory all at once."""
    begun = []

    async def fetch() -> bytes:
        begun.append(1)
        await asyncio.sleep(0)
        return frame(bytes(MIB))

    async def story() -> None:
        async with serving(lambda request, connection: fetch()) as (_, port), connected(port) as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b"fetch") * 100)
            await eventually_async(lambda: len(begun) > 1)
            await asyncio.sleep(0.1)
            assert len(begun) < 40
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(100):
                assert len(await read_frame(reader)) == MIB

    run(story())


def test_a_peer_that_never_reads_is_disconnected(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def big(request: bytes | memoryview, connection: Connection) -> bytes:
        return frame(bytes(MIB))

    async def story() -> None:
        async with serving(big, Limits(max_stall_ms=100)) as (server, port), connected(port) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b"fetch") * 100)
            await eventually_async(lambda: server.accepted == 1 and not server.connections)

    caplog.set_level(logging.INFO, "ottla.net")
    run(story())
    assert [r for r in caplog.records if "read no byte" in r.message]


def test_a_slow_peer_that_keeps_reading_stays_connected(run: Run) -> None:
    """A peer that has read some bytes since the last check gets as much time again."""

    def big(request: bytes | memoryview, connection: Connection) -> bytes:
        return frame(bytes(24 * MIB))

    async def story() -> None:
        async with serving(big, Limits(max_stall_ms=3_600_000)) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MIB)
            writer.write(frame(b"fetch"))
            times = 0
            for _ in range(24):
                await reader.readexactly(MIB)
                (connection,) = server.connections
                timer, left = connection.flow.timer, connection.transport.get_write_buffer_size()
                if timer is not None and 0 < left < connection.flow.size_at_check:
                    timer.cancel()
                    connection.flow.check()  # the hour is over
                    times += 1
            assert times > 1
            writer.close()

    run(story())


def test_too_many_pending_requests_pause_reading_but_not_the_responses(run: Run) -> None:
    async def story() -> None:
        handle = Parking()
        limits = Limits(max_waiting_requests=4)
        async with serving(handle, limits) as (_, port), connected(port) as (reader, writer):
            bodies = [b"wait-%d" % number if number % 3 == 0 else b"at-once-%d" % number for number in range(50)]
            for body in bodies:
                writer.write(frame(body))
            await eventually_async(lambda: len(handle.seen) >= 4)
            await asyncio.sleep(0.02)
            assert len(handle.seen) == 4
            for body in bodies:
                if body.startswith(b"wait"):
                    await eventually_async(lambda body=body: body in handle.parked)  # type: ignore[misc]
                    handle.release(body)
                assert await read_frame(reader) == body

    run(story())


def test_finished_responses_behind_an_unfinished_one_are_bounded_in_bytes(run: Run) -> None:
    async def story() -> None:
        handle = Parking()
        async with serving(handle, Limits(max_waiting_bytes=MIB)) as (_, port), connected(port) as (reader, writer):
            big = bytes(300_000)
            writer.write(frame(b"wait") + frame(big) * 20)
            await eventually_async(lambda: len(handle.seen) >= 5)
            await asyncio.sleep(0.05)
            assert len(handle.seen) == 5
            handle.release(b"wait")
            assert await read_frame(reader) == b"wait"
            for _ in range(20):
                assert await read_frame(reader) == big

    run(story())


def test_a_client_has_its_ipv4_address_on_a_socket_for_all_addresses(run: Run) -> None:
    """Otherwise quotas and limits of its address would not find it."""

    async def story() -> None:
        async with serving(echo, host="") as (server, port), connected(port) as (reader, writer):
            writer.write(frame(b"x"))
            await read_frame(reader)
            assert {connection.client_host for connection in server.connections} == {"/127.0.0.1"}

    run(story())
