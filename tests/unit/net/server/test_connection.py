"""The parts of a server connection on their own: states, frame parser, ordered responses, flow control."""

import asyncio
import gc
import struct
import weakref
from itertools import product

import pytest

from ottla.net.server.byte_budget import ByteBudget
from ottla.net.server.connection import PIECE_BYTES_MAX
from ottla.net.server.connection_state import CLOSED, CLOSING, ENDING, HELD, READING, TRANSITIONS, State, move
from ottla.net.server.flow_control import FlowControl
from ottla.net.server.frame_parser import (
    FIRST_ALLOCATION_BYTES,
    LARGE_FRAME_BYTES,
    RECEIVE_BUFFER_BYTES,
    Frame,
    FrameParser,
)
from ottla.net.server.ordered_responses import FLUSH_BYTES, OrderedResponses
from ottla.net.server.server import Connection, Disconnect, Handle, Limits, Server
from ottla.net.spare_buffers import SpareBuffers
from ottla.protocol.response_parts import ResponseParts
from ottla.testing.sim_loop import SimLoop

MIB = 1024 * 1024
EDGES = list(product(State, State))


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


# --- the table of states ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("current", "new"), [edge for edge in EDGES if edge[1] in TRANSITIONS[edge[0]]])
def test_an_allowed_transition_returns_the_new_state(current: State, new: State) -> None:
    assert move(current, new) is new


@pytest.mark.parametrize(("current", "new"), [edge for edge in EDGES if edge[1] not in TRANSITIONS[edge[0]]])
def test_a_forbidden_transition_is_a_bug(current: State, new: State) -> None:
    with pytest.raises(AssertionError, match=f"cannot move from {current.name} to {new.name}"):
        move(current, new)


def test_the_table_is_exactly_this_one() -> None:
    assert {state: set(TRANSITIONS[state]) for state in State} == {
        READING: {HELD, ENDING, CLOSING, CLOSED},
        HELD: {READING, ENDING, CLOSING, CLOSED},
        ENDING: {CLOSING, CLOSED},
        CLOSING: {CLOSED},
        CLOSED: set(),
    }


def test_a_connection_that_is_ending_never_accepts_requests_again() -> None:
    for state in (ENDING, CLOSING, CLOSED):
        assert not TRANSITIONS[state] & {READING, HELD}


# --- the transitions of a real connection -----------------------------------------------------------------


class FakeTransport(asyncio.Transport):
    """A transport without a socket: the test says how full its write buffer is."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.buffered = 0
        self.reading = True
        self.closed = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: object) -> None:
        raise AssertionError("only for large responses")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Peer:
    """A connection and the fake transport under it."""

    def __init__(self, handle: Handle, limits: Limits | None = None) -> None:
        self.server = Server(handle, limits)
        self.transport = FakeTransport()
        self.connection = Connection(self.server, "PLAINTEXT")
        self.connection.connection_made(self.transport)

    @property
    def state(self) -> State:
        return self.connection.state

    def sends(self, data: bytes) -> None:
        while data:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]


def echo(request: Frame, connection: Connection) -> bytes:
    return frame(bytes(request))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_full_write_buffer_holds_requests_until_the_peer_has_read() -> None:
    async def story() -> None:
        peer = Peer(echo)
        peer.connection.pause_writing()
        assert (peer.state, peer.transport.reading) == (HELD, False)
        peer.sends(frame(b"read ahead"))  # by a loop that had received it already
        assert not peer.transport.written
        peer.connection.resume_writing()
        assert peer.state is HELD  # until the loop's next turn
        await settle()
        assert (peer.state, peer.transport.reading) == (READING, True)
        assert peer.transport.written == [frame(b"read ahead")]

    SimLoop().run(story())


def test_a_lost_connection_is_freed_without_garbage_collection() -> None:
    """Full collections are rare, and peers can open and close thousands of connections between two of them."""

    async def story() -> None:
        peer = Peer(echo)
        peer.sends(frame(b"request"))
        peer.connection.connection_lost(None)
        await settle()
        connection = weakref.ref(peer.connection)
        del peer.connection
        assert connection() is None

    gc.disable()
    try:
        SimLoop().run(story())
    finally:
        gc.enable()


def test_reading_also_pauses_when_a_late_response_fills_the_write_buffer() -> None:
    """Otherwise a peer that sends and never reads could fill the memory with requests."""

    async def story() -> None:
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        peer = Peer(lambda request, connection: response)
        original = peer.transport.write

        def fills_the_buffer(data: bytes | bytearray | memoryview) -> None:
            original(data)
            peer.connection.pause_writing()

        peer.transport.write = fills_the_buffer  # type: ignore[method-assign]
        peer.sends(frame(b"x"))
        response.set_result(b"late")
        await settle()
        assert peer.transport.written == [b"late"]
        assert (peer.state, peer.transport.reading) == (HELD, False)

    SimLoop().run(story())


def test_too_many_pending_responses_hold_requests_until_half_of_them_are_written() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[bytes]] = []

        def late(request: Frame, connection: Connection) -> asyncio.Future[bytes]:
            futures.append(loop.create_future())
            return futures[-1]

        peer = Peer(late, Limits(max_waiting_requests=4))
        peer.sends(frame(b"x") * 6)
        assert (peer.state, peer.transport.reading, len(futures)) == (HELD, False, 4)
        futures[0].set_result(b"0")
        await settle()
        assert (peer.state, len(futures)) == (HELD, 4)
        futures[1].set_result(b"1")
        await settle()
        assert (peer.state, len(futures)) == (HELD, 6)  # two slots, and the two held frames filled them
        for future in futures[2:]:
            future.set_result(b"n")
        await settle()
        assert (peer.state, peer.transport.reading) == (READING, True)

    SimLoop().run(story())


@pytest.mark.parametrize(("size", "is_written_at_once"), [(MIB - 4, True), (MIB, False)])
def test_a_very_large_response_begins_in_a_turn_of_its_own(size: int, is_written_at_once: bool) -> None:
    """Many clients may ask for one in the same iteration of the loop."""

    async def story() -> None:
        response = frame(bytes(size))
        peer = Peer(lambda request, connection: ResponseParts([response], len(response)))
        peer.sends(frame(b"fetch"))
        assert bool(peer.transport.written) is is_written_at_once
        assert peer.state is (READING if is_written_at_once else HELD)
        await settle()
        assert b"".join(peer.transport.written) == response
        assert (peer.state, peer.transport.reading) == (READING, True)

    SimLoop().run(story())


def test_a_turn_that_is_over_ends_between_two_pieces() -> None:
    async def story() -> None:
        file = frame(bytes(4 * PIECE_BYTES_MAX - 4))
        peer = Peer(lambda request, connection: ResponseParts([file], len(file)), Limits(max_turn_ms=0))
        peer.sends(frame(b"fetch"))
        for pieces in range(1, 5):
            assert len(peer.transport.written) == pieces - 1
            await asyncio.sleep(0)
        assert b"".join(peer.transport.written) == file

    SimLoop().run(story())


def test_no_request_is_handled_in_the_middle_of_a_large_response() -> None:
    async def story() -> None:
        large = frame(bytes(2 * MIB))

        def handle(request: Frame, connection: Connection) -> ResponseParts | bytes:
            return ResponseParts([large], len(large)) if request == b"fetch" else echo(request, connection)

        peer = Peer(handle, Limits(max_turn_ms=0))
        peer.connection.pause_writing()
        peer.sends(frame(b"fetch") + frame(b"next"))
        for _ in range(3):
            peer.connection.resume_writing()  # each of them asks for a turn
        await settle()
        assert b"".join(peer.transport.written) == large + frame(b"next")

    SimLoop().run(story())


def test_a_transport_that_is_closing_gets_neither_pieces_nor_answers() -> None:
    """uvloop's transport knows of a reset before it calls connection_lost."""

    async def story() -> None:
        handled = []

        def large(request: Frame, connection: Connection) -> ResponseParts:
            handled.append(1)
            return ResponseParts([frame(bytes(2 * MIB))], 2 * MIB + 4)

        sending, held = Peer(large), Peer(echo)
        sending.sends(frame(b"fetch") * 2)
        held.connection.pause_writing()
        held.sends(frame(b"held"))
        held.connection.resume_writing()
        for peer in (sending, held):
            peer.transport.aborted = True
        await settle()
        assert (sending.transport.written, held.transport.written, len(handled)) == ([], [], 1)

    SimLoop().run(story())


def test_ending_without_pending_responses_closes_at_once() -> None:
    async def story() -> None:
        peer = Peer(echo)
        peer.connection.end()
        assert (peer.state, peer.transport.closed) == (CLOSING, True)
        peer.connection.end()
        peer.connection.close()
        peer.connection.connection_lost(None)
        assert peer.state is CLOSED
        peer.connection.end()
        peer.connection.close()
        assert (peer.state, peer.server.connections) == (CLOSED, set())

    SimLoop().run(story())


@pytest.mark.parametrize("held", [False, True])
def test_ending_with_a_pending_response_answers_it_first(held: bool) -> None:
    async def story() -> None:
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        peer = Peer(lambda request, connection: response)
        peer.sends(frame(b"x"))
        if held:
            peer.connection.pause_writing()
            assert peer.state is HELD
        peer.connection.end()
        assert (peer.state, peer.transport.reading) == (ENDING, False)
        peer.sends(frame(b"ignored"))
        if held:
            peer.connection.resume_writing()
        response.set_result(b"last")
        await settle()
        assert (peer.state, peer.transport.written, peer.transport.closed) == (CLOSING, [b"last"], True)

    SimLoop().run(story())


def test_a_peer_that_stops_reading_its_last_responses_stays_in_ending() -> None:
    async def story() -> None:
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        peer = Peer(lambda request, connection: response)
        peer.sends(frame(b"x"))
        peer.connection.end()
        peer.connection.pause_writing()
        assert peer.state is ENDING
        peer.connection.resume_writing()
        await settle()
        assert peer.state is ENDING
        response.set_result(b"last")
        await settle()
        assert peer.state is CLOSING

    SimLoop().run(story())


def test_a_peer_that_closed_its_side_is_cut_if_it_does_not_read_the_rest() -> None:
    async def story() -> None:
        peer = Peer(echo, Limits(max_stall_ms=1_000))
        peer.sends(frame(b"x"))
        peer.transport.buffered = 5
        peer.connection.eof_received()
        assert (peer.state, peer.transport.closed, peer.transport.aborted) == (CLOSING, True, False)
        await asyncio.sleep(1.1)
        assert peer.transport.aborted

    SimLoop().run(story())


@pytest.mark.parametrize("before", [READING, HELD, ENDING, CLOSING])
@pytest.mark.parametrize("how", ["abort", "lost"])
def test_a_connection_can_break_in_every_state(before: State, how: str) -> None:
    async def story() -> None:
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        peer = Peer(lambda request, connection: response)
        peer.sends(frame(b"x"))
        await settle()
        if before is HELD:
            peer.connection.pause_writing()
        elif before is ENDING:
            peer.connection.end()
        elif before is CLOSING:
            peer.connection.close()
        assert peer.state is before
        if how == "abort":
            peer.connection.abort()
            assert (peer.state, peer.transport.aborted) == (CLOSING, True)
        peer.connection.connection_lost(None)
        assert peer.state is CLOSED
        await settle()
        assert response.cancelled()
        assert not peer.connection.is_busy

    SimLoop().run(story())


def test_an_invalid_frame_ends_the_connection_after_the_frames_before_it() -> None:
    async def story() -> None:
        peer = Peer(echo)
        peer.connection.pause_writing()
        peer.sends(frame(b"fine") + struct.pack(">i", -1) + b"rubbish")
        peer.sends(b"more rubbish")
        assert peer.state is HELD
        peer.connection.resume_writing()
        await settle()
        assert (peer.state, peer.transport.written) == (CLOSING, [frame(b"fine")])

    SimLoop().run(story())


def test_a_handler_may_end_its_own_connection() -> None:
    def refuse(request: Frame, connection: Connection) -> bytes:
        raise Disconnect("no")

    async def story() -> None:
        peer = Peer(refuse)
        peer.sends(frame(b"x") * 2)
        assert (peer.state, peer.transport.written) == (CLOSING, [])

    SimLoop().run(story())


# --- frame parser -----------------------------------------------------------------------------------------


def parser(max_frame_bytes: int = 10_000_000, budget: int = 10**9) -> FrameParser:
    shared = ByteBudget[FrameParser](budget, lambda: None)
    return FrameParser(memoryview(bytearray(RECEIVE_BUFFER_BYTES)), SpareBuffers(), max_frame_bytes, shared)


def feed(into: FrameParser, data: bytes, piece: int) -> list[bytes]:
    """Feeds `data` in pieces of at most `piece` bytes."""
    frames = []
    while data:
        room = into.get_buffer()
        count = min(len(room), len(data), piece)
        room[:count] = data[:count]
        frames += [bytes(found) for found in into.feed(count)]
        data = data[count:]
    return frames


@pytest.mark.parametrize("piece", [1, 3, 1000, LARGE_FRAME_BYTES, 10**9])
def test_frames_are_the_same_however_the_bytes_arrive(piece: int) -> None:
    sizes = [0, 1, 5, 300, LARGE_FRAME_BYTES - 4, 7]
    if piece > 3:
        sizes += [
            LARGE_FRAME_BYTES - 5,
            LARGE_FRAME_BYTES,
            RECEIVE_BUFFER_BYTES,
            FIRST_ALLOCATION_BYTES + 1,
            900_000,
            2,
        ]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    assert feed(parser(), b"".join(map(frame, bodies)), piece) == bodies


def test_a_small_frame_shares_no_memory_with_later_input() -> None:
    into = parser()
    view = into.get_buffer()
    view[:9] = frame(b"first")
    (first,) = into.feed(9)
    view[:9] = frame(b"other")
    assert bytes(first) == b"first"


@pytest.mark.parametrize("size", [-1, 1001])
def test_a_size_outside_the_limit_is_an_error_behind_the_frames_before_it(size: int) -> None:
    into = parser(max_frame_bytes=1000)
    assert feed(into, frame(b"fine") + struct.pack(">i", size) + b"rubbish", 10**9) == [b"fine"]
    assert into.error == f"invalid frame size {size} (limit 1000)"
    assert feed(into, frame(b"no longer read"), 10**9) == []


def test_the_hello_of_a_tls_client_is_distinguished_from_other_sizes() -> None:
    into = parser(max_frame_bytes=1000)
    feed(into, bytes.fromhex("1603010200010001fc0303"), 10**9)
    assert into.error is not None
    assert into.error.endswith(": the client uses TLS, but this listener does not")


def test_a_size_prefix_alone_gets_little_memory() -> None:
    """Spec: R8."""
    into = parser(max_frame_bytes=2**31 - 1)
    feed(into, struct.pack(">i", 2**31 - 1), 4)
    assert into.allocated_bytes == FIRST_ALLOCATION_BYTES
    feed(into, bytes(1_000_000), 10**9)
    assert into.allocated_bytes <= 2_100_000
    into.clear()
    assert into.allocated_bytes == 0


def test_the_first_memory_of_a_frame_is_smaller_when_memory_is_short() -> None:
    plenty, little = parser(), parser(budget=MIB)
    for into in (plenty, little):
        feed(into, struct.pack(">i", 5_000_000), 4)
    assert (plenty.allocated_bytes, little.allocated_bytes) == (FIRST_ALLOCATION_BYTES, 2 * LARGE_FRAME_BYTES)
    assert feed(little, b"x" * 5_000_000, 10**9) == [b"x" * 5_000_000]


def test_a_full_shared_buffer_means_that_more_has_arrived() -> None:
    into = parser()
    feed(into, frame(bytes(60)) * 1023 + frame(bytes(60)), 10**9)
    assert into.buffer_was_full
    feed(into, frame(b"x"), 10**9)
    assert not into.buffer_was_full


# --- ordered responses ------------------------------------------------------------------------------------


def test_finished_responses_leave_together_behind_the_unfinished_one() -> None:
    async def story() -> None:
        responses = OrderedResponses(max_count=10, max_bytes=100)
        first: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        second: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        for response in (first, b"a", None, b"b", second, b"c"):
            responses.put(response, request_bytes=5)
        assert responses.size_bytes == 13
        first.set_result(None)
        assert await responses.next_ready() == [b"a", b"b"]
        second.set_result(b"2")
        assert await responses.next_ready() == [b"2", b"c"]
        assert (len(responses.items), responses.size_bytes) == (0, 0)

    SimLoop().run(story())


def test_a_batch_of_responses_is_bounded_in_bytes() -> None:
    async def story() -> None:
        responses = OrderedResponses(max_count=10, max_bytes=10**9)
        for _ in range(4):
            responses.put(bytes(FLUSH_BYTES // 2), 0)
        for _ in range(2):
            ready = await responses.next_ready()
            assert isinstance(ready, list)
            assert len(ready) == 2

    SimLoop().run(story())


def test_the_queue_is_full_by_count_or_by_bytes() -> None:
    by_count = OrderedResponses(max_count=2, max_bytes=100)
    by_count.put(b"1", 0)
    assert not by_count.is_full
    assert by_count.is_half_empty
    by_count.put(b"2", 0)
    assert by_count.is_full
    assert not by_count.is_half_empty
    by_bytes = OrderedResponses(max_count=100, max_bytes=10)
    by_bytes.put(bytes(10), 0)
    assert not by_bytes.is_full
    by_bytes.put(b"1", 0)
    assert by_bytes.is_full


def test_discarding_cancels_futures_and_closes_coroutines() -> None:
    async def never_begun() -> bytes:
        raise AssertionError

    async def story() -> None:
        responses = OrderedResponses(max_count=10, max_bytes=100)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        responses.put(future, 1)
        responses.put(never_begun(), 1)  # would warn if it were neither awaited nor closed
        responses.discard()
        assert future.cancelled()
        assert (len(responses.items), responses.size_bytes) == (0, 0)

    SimLoop().run(story())


# --- flow control -----------------------------------------------------------------------------------------


def test_a_peer_is_stalled_once_it_reads_nothing_for_the_whole_time() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        transport, stalled = FakeTransport(), []
        flow = FlowControl(loop, transport, 1_000, lambda: stalled.append(loop.time()))
        start = loop.time()
        transport.buffered = 100
        flow.pause_writing()
        await asyncio.sleep(0.5)
        transport.buffered = 60
        await asyncio.sleep(1)
        assert not stalled  # it had read some at the first check, so it got as much time again
        await asyncio.sleep(1)
        assert stalled == [pytest.approx(start + 2)]

    SimLoop().run(story())


def test_a_peer_that_reads_again_is_not_watched_and_has_room() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        transport, stalled = FakeTransport(), []
        flow = FlowControl(loop, transport, 1_000, lambda: stalled.append(1))
        flow.pause_writing()
        assert flow.write_paused
        waiting = asyncio.ensure_future(flow.wait_for_room())
        await asyncio.sleep(0.5)
        flow.resume_writing()
        await waiting
        assert not flow.write_paused
        await asyncio.sleep(5)
        assert not stalled

    SimLoop().run(story())
