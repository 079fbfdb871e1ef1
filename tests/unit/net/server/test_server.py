"""The server: frames, order of responses, few writes, and an orderly end."""

import asyncio
import socket
import struct
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from ottla.net.server.frame_parser import RECEIVE_BUFFER_BYTES
from ottla.net.server.server import Connection, Limits, Server
from ottla.net.spare_buffers import SpareBuffers
from ottla.testing.sim_loop import SimLoop
from ottla.testing.sim_network import SimNetwork
from tests.support.seeds import each_seed
from tests.support.waiting import eventually_async
from tests.support.wire.frame_server import MIB, Parking, Run, connected, echo, frame, read_frame, serving

# --- frames -----------------------------------------------------------------------------------------------


def test_a_request_is_answered(run: Run) -> None:
    async def story() -> None:
        async with serving(echo) as (_, port), connected(port) as (reader, writer):
            writer.write(frame(b"hello"))
            assert await read_frame(reader) == b"hello"

    run(story())


def test_pipelined_requests_of_every_size_come_back_whole_and_in_order(run: Run) -> None:
    sizes = [0, 1, 3, 200, 32 * 1024 - 5, 32 * 1024 - 4, 32 * 1024, 127_999, 128 * 1024, 300_000, 5, 2 * MIB, 7, 7]

    async def story() -> None:
        bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
        async with serving(echo) as (_, port), connected(port) as (reader, writer):
            writer.write(b"".join(map(frame, bodies)))
            for body in bodies:
                assert await read_frame(reader) == body

    run(story())


def test_a_request_may_arrive_byte_by_byte(run: Run) -> None:
    async def story() -> None:
        async with serving(echo) as (_, port), connected(port) as (reader, writer):
            for byte in frame(b"slow") + frame(b"slower"):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert [await read_frame(reader), await read_frame(reader)] == [b"slow", b"slower"]

    run(story())


def test_a_handler_may_keep_views_into_its_frame(run: Run) -> None:
    kept: list[memoryview] = []

    def keep(request: bytes | memoryview, connection: Connection) -> bytes:
        kept.append(memoryview(request))
        return frame(b"")

    async def story() -> None:
        bodies = [bytes([number]) * size for number, size in enumerate([10, 50_000, 10, 400_000, 20])]
        async with serving(keep) as (_, port), connected(port) as (reader, writer):
            for body in bodies:
                writer.write(frame(body))
                await read_frame(reader)
        assert [bytes(view) for view in kept] == bodies

    run(story())


def test_a_buffer_is_reused_once_no_view_of_it_exists() -> None:
    spares = SpareBuffers()
    first = spares.take(100_000)
    identity, view = id(first), memoryview(first)
    spares.give(first)
    del first
    assert id(spares.take(90_000)) != identity
    view.release()
    assert id(spares.take(90_000)) == identity


def test_a_view_returns_to_the_pool_with_its_last_slice() -> None:
    spares = SpareBuffers(count=2)
    view = spares.view(100_000)
    view[:4] = b"mine"
    kept = view[2:4]
    del view
    others = [spares.view(100_000) for _ in range(3)]
    for other in others:
        other[:] = bytes(100_000)
    assert bytes(kept) == b"ne", "a view in use is not overwritten"
    memory = others[-1].obj
    identity = id(memory)
    del memory, other, others, kept
    found = [spares.view(90_000) for _ in range(2)]
    assert identity in [id(view.obj) for view in found]
    assert {view.nbytes for view in found} == {90_000}


def test_large_frames_in_a_row_need_no_new_memory(run: Run) -> None:
    async def story() -> None:
        async with serving(lambda request, connection: frame(b"")) as (server, port):
            taken = []
            take = server.spares.take

            def spy(size: int) -> bytearray:
                buffer = take(size)
                taken.append(id(buffer))
                return buffer

            server.spares.take = spy  # type: ignore[method-assign]
            async with connected(port) as (reader, writer):
                for _ in range(6):
                    writer.write(frame(bytes(200_000)))
                    await read_frame(reader)
            assert len(taken) == 6
            assert len(set(taken)) == 1

    run(story())


def test_responses_to_one_read_leave_in_one_write(run: Run) -> None:
    class Spy:
        def __init__(self, transport: Any) -> None:
            self.transport, self.writes = transport, 0

        def write(self, data: bytes) -> None:
            self.writes += 1
            self.transport.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.transport, name)

    async def story() -> None:
        async with serving(echo) as (server, port), connected(port) as (reader, writer):
            writer.write(frame(b"x"))
            await read_frame(reader)
            (connection,) = server.connections
            spy = Spy(connection.transport)
            connection.transport = cast("asyncio.Transport", spy)
            writer.write(frame(b"y") * 100)
            for _ in range(100):
                await read_frame(reader)
            assert spy.writes <= 2  # one, unless the kernel handed the bytes over in two pieces

    run(story())


def test_no_response_means_no_bytes(run: Run) -> None:
    def quiet(request: bytes | memoryview, connection: Connection) -> bytes | None:
        return None if bytes(request) == b"acks=0" else frame(bytes(request))

    async def story() -> None:
        async with serving(quiet) as (_, port), connected(port) as (reader, writer):
            writer.write(frame(b"acks=0") * 3 + frame(b"acks=1"))
            assert await read_frame(reader) == b"acks=1"

    run(story())


# --- order ------------------------------------------------------------------------------------------------


def test_later_responses_wait_for_an_earlier_one(run: Run) -> None:
    async def story() -> None:
        handle = Parking()
        async with serving(handle) as (_, port), connected(port) as (reader, writer):
            writer.write(frame(b"wait-1") + frame(b"a") + frame(b"wait-2") + frame(b"b"))
            await eventually_async(lambda: len(handle.seen) == 4)  # all were begun at once, in order
            handle.release(b"wait-2")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(1), 0.02)
            handle.release(b"wait-1")
            assert [await read_frame(reader) for _ in range(4)] == [b"wait-1", b"a", b"wait-2", b"b"]

    run(story())


def test_a_late_response_may_be_none(run: Run) -> None:
    async def story() -> None:
        handle = Parking()
        async with serving(handle) as (_, port), connected(port) as (reader, writer):
            writer.write(frame(b"wait") + frame(b"next"))
            await eventually_async(lambda: b"wait" in handle.parked)
            handle.parked[b"wait"].set_result(None)
            assert await read_frame(reader) == b"next"

    run(story())


def test_other_connections_do_not_wait_for_a_parked_one(run: Run) -> None:
    async def story() -> None:
        handle = Parking()
        async with serving(handle) as (_, port), connected(port) as (_, one), connected(port) as (reader, two):
            one.write(frame(b"wait"))
            await eventually_async(lambda: b"wait" in handle.parked)
            two.write(frame(b"quick"))
            assert await read_frame(reader) == b"quick"

    run(story())


def send_some(sock: socket.socket, data: bytes) -> int:
    try:
        return sock.send(data)
    except BlockingIOError:
        return 0


def test_a_flood_on_one_connection_does_not_starve_the_others(run: Run) -> None:
    async def story() -> None:
        handled: list[bytes] = []

        def note(request: bytes | memoryview, connection: Connection) -> bytes:
            handled.append(bytes(request[:1]))
            return frame(b"")

        async with serving(note) as (server, port), connected(port) as (reader, other):
            flood = socket.create_connection(("127.0.0.1", port))
            await eventually_async(lambda: len(server.connections) == 2)
            flood.setblocking(False)
            # Nothing runs on the loop between these: the flood fills the kernel's buffers before the other sends.
            sent = sum(iter(lambda: send_some(flood, frame(b"f" * 96) * 1000), 0))
            other.write(frame(b"o"))
            await read_frame(reader)
            assert sent > 5 * RECEIVE_BUFFER_BYTES
            assert handled.index(b"o") < 1.5 * RECEIVE_BUFFER_BYTES / 100
            await eventually_async(lambda: server.bytes_in == sent + 5)
            flood.close()

    run(story())


def test_pending_requests_are_cancelled_when_the_client_disconnects(run: Run) -> None:
    async def story() -> None:
        handle = Parking()
        begun = []

        async def never_begun() -> bytes:
            begun.append(1)
            return b""

        def with_coroutine(request: bytes | memoryview, connection: Connection) -> Any:
            return never_begun() if bytes(request) == b"second" else handle(request, connection)

        async with serving(with_coroutine) as (server, port):
            async with connected(port) as (_, writer):
                writer.write(frame(b"wait") + frame(b"second"))
                await eventually_async(lambda: b"wait" in handle.parked)
            await eventually_async(lambda: not server.connections and handle.parked[b"wait"].cancelled())
            assert not begun

    run(story())


# --- the end ----------------------------------------------------------------------------------------------


def test_closing_waits_for_requests_in_flight(run: Run) -> None:
    async def story() -> None:
        handle = Parking()
        server = Server(handle)
        port = await server.listen("127.0.0.1", 0)
        async with connected(port) as (reader, writer), connected(port) as (idle, _):
            writer.write(frame(b"wait"))
            await eventually_async(lambda: b"wait" in handle.parked and len(server.connections) == 2)
            closing = asyncio.ensure_future(server.close(grace_ms=60_000))
            assert await idle.read() == b""
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            handle.release(b"wait")
            assert await read_frame(reader) == b"wait"
            assert await reader.read() == b""
            await closing

    run(story())


def test_closing_waits_no_longer_than_its_grace_period(run: Run) -> None:
    async def story() -> None:
        handle = Parking()
        server = Server(handle)
        port = await server.listen("127.0.0.1", 0)
        async with connected(port) as (_, writer):
            writer.write(frame(b"wait"))
            await eventually_async(lambda: b"wait" in handle.parked)
            await server.close(grace_ms=50)
            assert handle.parked[b"wait"].cancelled()
            assert not server.connections

    run(story())


def test_a_taken_port_is_an_os_error(run: Run) -> None:
    async def story() -> None:
        async with serving(echo) as (_, port):
            with pytest.raises(OSError, match="in use"):
                await Server(echo).listen("127.0.0.1", port)

    run(story())


def test_all_interfaces_and_all_addresses_of_a_name_share_one_port(run: Run) -> None:
    async def story() -> None:
        for host in ("", "localhost"):
            server = Server(echo)
            port = await server.listen(host, 0)
            async with connected(port) as (reader, writer):
                writer.write(frame(b"hi"))
                assert await read_frame(reader) == b"hi"
            await server.close()

    run(story())


# --- the simulated world ----------------------------------------------------------------------------------


@each_seed(20)
def test_responses_keep_their_order_in_simulations(seed: int) -> None:
    """Random pieces, random delays, a mix of requests that wait and requests that do not."""
    loop = SimLoop(seed)
    SimNetwork(loop)

    def mixed(request: bytes | memoryview, connection: Connection) -> bytes | Awaitable[bytes]:
        body = bytes(request)

        async def later() -> bytes:
            await asyncio.sleep(loop.random.random())
            return frame(body)

        return later() if loop.random.random() < 0.4 else frame(body)

    async def story() -> None:
        server = Server(mixed, Limits(max_waiting_requests=8, max_waiting_bytes=MIB))
        port = await server.listen("127.0.0.1", 0)
        bodies = [b"%d:" % number + bytes(loop.random.choice([0, 100, 40_000, 200_000])) for number in range(60)]
        received = asyncio.Queue[bytes]()

        class Client(asyncio.Protocol):
            def __init__(self) -> None:
                self.buffer = b""

            def data_received(self, data: bytes) -> None:
                self.buffer += data
                while len(self.buffer) >= 4 and len(self.buffer) >= 4 + struct.unpack_from(">i", self.buffer)[0]:
                    size = struct.unpack_from(">i", self.buffer)[0]
                    received.put_nowait(self.buffer[4 : 4 + size])
                    self.buffer = self.buffer[4 + size :]

        transport, _ = await loop.create_connection(Client, "127.0.0.1", port)
        for body in bodies:
            transport.write(frame(body))
        assert [await received.get() for _ in bodies] == bodies
        await server.close(grace_ms=100)

    loop.run(story())


def test_an_idle_connection_is_closed_after_max_idle_ms() -> None:
    loop = SimLoop()
    SimNetwork(loop)

    async def story() -> None:
        server = Server(echo, Limits(max_idle_ms=600_000))
        port = await server.listen("127.0.0.1", 0)
        lost = loop.create_future()

        class Client(asyncio.Protocol):
            def connection_lost(self, error: Exception | None) -> None:
                lost.set_result(loop.time())

        await loop.create_connection(Client, "127.0.0.1", port)
        assert 600 <= await lost <= 662
        await server.close()

    loop.run(story())


def test_a_connection_with_a_pending_request_is_not_idle() -> None:
    loop = SimLoop()
    SimNetwork(loop)

    async def story() -> None:
        handle = Parking()
        async with serving(handle, Limits(max_idle_ms=40_000)) as (_, port), connected(port) as (reader, writer):
            writer.write(frame(b"wait"))
            await asyncio.sleep(150)
            handle.release(b"wait")
            assert await read_frame(reader) == b"wait"
            writer.write(frame(b"next"))
            assert await read_frame(reader) == b"next"

    loop.run(story())
