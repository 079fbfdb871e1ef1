"""Large responses: read piece by piece as the peer reads them, in turns with other connections, within a budget."""

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.net.server.connection import PIECE_BYTES_MAX, PIECE_BYTES_MIN
from ottla.net.server.flow_control import WRITE_HIGH_BYTES
from ottla.net.server.ordered_responses import Response
from ottla.net.server.server import Connection, Limits, Server
from ottla.protocol.response_parts import ResponseParts
from ottla.testing.sim_loop import SimLoop
from ottla.testing.sim_network import SimNetwork
from tests.support.seeds import each_seed
from tests.support.waiting import eventually_async
from tests.support.wire.frame_server import MIB, Parking, Run, connected, echo, frame, read_frame, serving

KERNEL_BYTES = 16 * MIB
"""More than the kernel buffers for two ends of a connection."""


class InFile:
    """Records in a file: notes how many bytes are read, and can be deleted."""

    def __init__(self, size: int, fill: bytes = b"r") -> None:
        self.size = size
        self.fill = fill
        self.bytes_read = 0
        self.pieces: list[int] = []
        self.is_gone = False

    def __len__(self) -> int:
        return self.size

    def read(self, at: int, size: int) -> bytes:
        if self.is_gone:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the segment was deleted")
        self.bytes_read += size
        self.pieces.append(size)
        return self.fill * size


def in_parts(*files: InFile) -> ResponseParts:
    size = sum(map(len, files))
    return ResponseParts([struct.pack(">i", size), *files], size + 4)


class Files:
    """A handler that answers `<size>` with that many bytes from a file, `late <size>` later, and echoes the rest."""

    def __init__(self) -> None:
        self.files: list[InFile] = []
        self.handled = 0

    def __call__(self, request: bytes | memoryview, connection: Connection) -> Response | Awaitable[Response]:
        self.handled += 1
        words = bytes(request).split()
        if not words or not words[-1].isdigit():
            return frame(bytes(request))
        file = InFile(int(words[-1]))
        self.files.append(file)

        async def later() -> Response:
            await asyncio.sleep(0.001)
            return in_parts(file)

        return later() if words[0] == b"late" else in_parts(file)


# --- whole and in order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [b"", b"late "])
def test_large_responses_arrive_whole_and_in_order(run: Run, prefix: bytes) -> None:
    sizes = [200_000, 3 * MIB, 1, 70_000, 9 * MIB, MIB]

    async def story() -> None:
        handle = Files()
        async with serving(handle) as (_, port), connected(port) as (reader, writer):
            writer.write(b"".join(frame(prefix + b"%d" % size) + frame(b"after") for size in sizes))
            for size in sizes:
                assert await read_frame(reader) == b"r" * size
                assert await read_frame(reader) == b"after"

    run(story())


@each_seed(10)
def test_every_mixture_keeps_its_order_in_simulations(seed: int) -> None:
    """Small and large responses, at once and late, over a network with random delays and pieces."""
    loop = SimLoop(seed)
    SimNetwork(loop)

    async def story() -> None:
        handle = Files()
        server = Server(handle, Limits(max_waiting_requests=8, max_unread_bytes=MIB))
        port = await server.listen("127.0.0.1", 0)
        async with connected(port) as (reader, writer):
            sizes = [loop.random.choice([10, 70_000, 300_000, 2_000_000]) for _ in range(30)]
            for size in sizes:
                writer.write(frame(loop.random.choice([b"%d", b"late %d"]) % size) + frame(b"small"))
            for size in sizes:
                assert len(await read_frame(reader)) == size
                assert await read_frame(reader) == b"small"
        await server.close(grace_ms=100)
        assert (server.unread_responses.used, server.unread_responses.held) == (0, {})

    loop.run(story())


def test_a_large_response_behind_a_pending_one_waits_for_its_turn(run: Run) -> None:
    async def story() -> None:
        parking, files = Parking(), Files()

        def handle(request: bytes | memoryview, connection: Connection) -> Any:
            return (parking if bytes(request).startswith(b"wait") else files)(request, connection)

        async with serving(handle) as (_, port), connected(port) as (reader, writer):
            writer.write(frame(b"wait") + frame(b"2000000") + frame(b"next"))
            await eventually_async(lambda: files.handled == 1)
            await asyncio.sleep(0.01)
            assert (files.handled, files.files[0].bytes_read) == (1, 0)
            parking.release(b"wait")
            assert await read_frame(reader) == b"wait"
            assert len(await read_frame(reader)) == 2_000_000
            assert await read_frame(reader) == b"next"

    run(story())


# --- peers that do not read, and peers that are gone ------------------------------------------------------


@pytest.mark.parametrize("prefix", [b"", b"late "])
def test_only_what_a_peer_reads_is_read_from_files(run: Run, prefix: bytes) -> None:
    """Spec: R8. Twenty pipelined fetches of a peer that reads nothing cost one piece."""

    async def story() -> None:
        handle = Files()
        async with serving(handle) as (server, port), connected(port) as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(prefix + b"50000000") * 20)
            await eventually_async(lambda: any(connection.flow.write_paused for connection in server.connections))
            (connection,) = server.connections
            assert handle.files[0].bytes_read < KERNEL_BYTES
            assert sum(file.bytes_read for file in handle.files[1:]) == 0
            assert connection.transport.get_write_buffer_size() <= WRITE_HIGH_BYTES + PIECE_BYTES_MAX
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(2):
                assert len(await read_frame(reader)) == 50_000_000

    run(story())


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("prefix", [b"", b"late "])
def test_a_reset_connection_is_no_longer_served(run: Run, prefix: bytes) -> None:
    """Spec: R8. Neither the rest of its response is read nor are its other requests handled."""

    async def story() -> None:
        handle = Files()
        async with serving(handle) as (server, port):
            peer = socket.create_connection(("127.0.0.1", port))
            peer.sendall(frame(prefix + b"50000000") * 20)
            await eventually_async(lambda: bool(handle.files) and handle.files[0].bytes_read > 0)
            reset(peer)
            await eventually_async(lambda: not server.connections)
            await asyncio.sleep(0.02)
            assert sum(file.bytes_read for file in handle.files) < KERNEL_BYTES
            assert prefix or handle.handled == 1
            assert (server.unread_responses.used, server.unread_responses.held) == (0, {})

    run(story())


def test_a_transport_that_knows_of_the_reset_gets_nothing_more(run: Run) -> None:
    """uvloop reports a failed write to the transport at once, but to the protocol only later."""

    async def story() -> None:
        handle = Files()
        async with serving(handle) as (server, port), connected(port) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b"50000000") + frame(b"next"))
            await eventually_async(lambda: handle.handled == 1)
            (connection,) = server.connections
            connection.transport.abort()
            read = handle.files[0].bytes_read
            await eventually_async(lambda: not server.connections)
            assert (handle.files[0].bytes_read, handle.handled) == (read, 1)

    run(story())


def test_records_that_are_gone_end_the_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        handle = Files()
        async with serving(handle) as (server, port), connected(port) as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b"50000000") + frame(b"next"))
            await eventually_async(lambda: any(connection.flow.write_paused for connection in server.connections))
            handle.files[0].is_gone = True
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_frame(reader)
            assert handle.handled == 1

    caplog.set_level(logging.INFO, "ottla.net")
    run(story())
    assert [r for r in caplog.records if "the segment was deleted" in r.message and not r.exc_info]


def test_a_server_that_closes_finishes_its_large_responses(run: Run) -> None:
    async def story() -> None:
        handle = Files()
        server = Server(handle)
        port = await server.listen("127.0.0.1", 0)
        async with connected(port) as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b"50000000") + frame(b"ignored"))
            await eventually_async(lambda: any(connection.flow.write_paused for connection in server.connections))
            closing = asyncio.ensure_future(server.close(grace_ms=60_000))
            await asyncio.sleep(0)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await read_frame(reader)) == 50_000_000
            assert await reader.read() == b""
            await closing

    run(story())


def test_a_peer_that_closed_its_side_and_reads_nothing_is_cut(run: Run) -> None:
    async def story() -> None:
        async with serving(Files(), Limits(max_stall_ms=100)) as (server, port), connected(port) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b"50000000"))
            writer.write_eof()
            await eventually_async(lambda: server.accepted == 1 and not server.connections)

    run(story())


# --- turns ------------------------------------------------------------------------------------------------


def test_others_are_served_between_the_pieces_of_large_responses(run: Run) -> None:
    """Fifty large responses at once: another client's request waits for one iteration of the loop, not for them."""

    async def story() -> None:
        handle = Files()
        async with serving(handle) as (_, port), connected(port) as (reader, writer):
            busy = [await asyncio.open_connection("127.0.0.1", port, limit=64 * MIB) for _ in range(50)]
            for _, other in busy:
                other.write(frame(b"8000000"))
            await eventually_async(lambda: handle.handled == 50)
            before = sum(file.bytes_read for file in handle.files)
            writer.write(frame(b"small"))
            assert await read_frame(reader) == b"small"
            assert sum(file.bytes_read for file in handle.files) - before < 50 * 8_000_000 // 2
            for other_reader, other in busy:
                assert len(await read_frame(other_reader)) == 8_000_000
                other.close()

    run(story())


def test_requests_beyond_a_turn_wait_while_others_have_theirs() -> None:
    """With turns of no length, each iteration of the loop handles one request of each connection."""
    loop = SimLoop()
    SimNetwork(loop, delay_ms=(1, 1))
    handled: list[bytes] = []

    def note(request: bytes | memoryview, connection: Connection) -> bytes:
        handled.append(bytes(request))
        return echo(request, connection)

    async def story() -> None:
        async with (
            serving(note, Limits(max_turn_ms=0)) as (_, port),
            connected(port) as (reader, many),
            connected(port) as (other_reader, one),
        ):
            many.write(b"".join(frame(b"%d" % number) for number in range(100)))
            one.write(frame(b"one"))
            assert await read_frame(other_reader) == b"one"
            assert [await read_frame(reader) for _ in range(100)] == [b"%d" % number for number in range(100)]
        assert handled.index(b"one") < 50

    loop.run(story())


def test_an_end_of_file_behind_requests_does_not_drop_them() -> None:
    """A producer with acks=0 may send and leave: requests that wait for their turn are still handled."""
    loop = SimLoop()
    SimNetwork(loop)
    handled: list[bytes] = []

    def quiet(request: bytes | memoryview, connection: Connection) -> None:
        handled.append(bytes(request))

    async def story() -> None:
        async with serving(quiet, Limits(max_turn_ms=0)) as (server, port):
            async with connected(port) as (_, writer):
                writer.write(frame(b"acks=0") * 100)
            await eventually_async(lambda: server.accepted == 1 and not server.connections)

    loop.run(story())
    assert len(handled) == 100


# --- the budget of unread responses -----------------------------------------------------------------------


def test_pieces_shrink_and_the_slowest_readers_are_cut_when_memory_is_short(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Spec: R8. The memory for peers that do not read is bounded, and a peer that reads is not cut for them."""

    async def story() -> None:
        handle = Files()
        limits = Limits(max_unread_bytes=MIB)
        async with serving(handle, limits) as (server, port), connected(port) as (reader, writer):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            for _, other in silent:
                other.transport.pause_reading()  # type: ignore[attr-defined]
                other.write(frame(b"50000000"))
            await eventually_async(lambda: handle.handled == 40)
            await eventually_async(lambda: server.unread_responses.used > 0)
            for _ in range(3):
                writer.write(frame(b"20000000"))
                assert len(await read_frame(reader)) == 20_000_000
            assert server.unread_responses.used <= 2 * MIB
            assert min(min(file.pieces) for file in handle.files if len(file.pieces) > 1) <= PIECE_BYTES_MIN
            for _, other in silent:
                other.close()

    run(story())


def test_large_responses_in_memory_are_bounded_by_cutting_the_slowest(run: Run) -> None:
    """Metadata of thousands of topics, for peers that do not read."""

    async def story() -> None:
        limits = Limits(max_unread_bytes=8 * MIB)
        big = frame(bytes(12 * MIB))
        async with serving(lambda request, connection: big, limits) as (server, port):
            peers = []
            for _ in range(3):
                peers.append(socket.create_connection(("127.0.0.1", port)))
                peers[-1].sendall(frame(b"metadata") * 20)
                accepted = len(peers)
                await eventually_async(lambda accepted=accepted: server.cut == accepted)  # type: ignore[misc]
            assert server.unread_responses.used == 0
            for peer in peers:
                peer.close()

    run(story())


def test_finished_responses_behind_a_pending_one_count(run: Run) -> None:
    """A budget that is nearly used up lets each connection queue little."""

    async def story() -> None:
        handle = Parking()
        async with serving(handle, Limits(max_unread_bytes=4 * MIB)) as (server, port), connected(port) as (_, writer):
            writer.write(frame(b"wait") + frame(bytes(100_000)) * 100)
            await eventually_async(lambda: bool(server.unread_responses.held))
            await asyncio.sleep(0.02)
            assert len(handle.seen) < 12
            assert server.unread_responses.used < MIB + 200_000

    run(story())


# --- the budget of incomplete requests --------------------------------------------------------------------


def test_incomplete_requests_are_bounded_and_the_slowest_are_cut(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Spec: R8. Many peers that each send a part of a large request."""

    async def story() -> None:
        async with serving(echo, Limits(max_incomplete_bytes=4 * MIB)) as (server, port):
            peers = []
            for number in range(30):
                peers.append(socket.create_connection(("127.0.0.1", port)))
                peers[-1].sendall(struct.pack(">i", 90_000_000) + bytes(300_000))
                received = (number + 1) * 300_004
                await eventually_async(lambda received=received: server.bytes_in >= received)  # type: ignore[misc]
                await eventually_async(lambda: server.incomplete_requests.used <= 4 * MIB)
            assert 10 < server.cut < 30
            async with connected(port) as (reader, writer):
                writer.write(frame(bytes(2 * MIB)))
                assert len(await read_frame(reader)) == 2 * MIB
            for peer in peers:
                peer.close()
            await eventually_async(lambda: not server.connections)
            assert (server.incomplete_requests.used, server.incomplete_requests.held) == (0, {})

    caplog.set_level(logging.INFO, "ottla.net")
    run(story())
    assert [r for r in caplog.records if "among the slowest senders" in r.message]


def test_an_incomplete_large_request_that_makes_no_progress_is_cut() -> None:
    loop = SimLoop()
    SimNetwork(loop)

    async def story() -> None:
        async with serving(echo) as (server, port), connected(port) as (reader, stopped), connected(port) as other:
            stopped.write(struct.pack(">i", 1_000_000) + bytes(100_000))
            slow = asyncio.ensure_future(read_frame(other[0]))
            started = loop.time()
            other[1].write(struct.pack(">i", 1_000_000))
            for _ in range(10):
                other[1].write(bytes(100_000))
                await asyncio.sleep(15)
            assert await slow == bytes(1_000_000)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert server.incomplete_requests.held == {}
            assert loop.time() - started < 200

    loop.run(story())
