"""Splits the bytes a server receives on one connection into frames: a 4-byte size, then that many bytes. Pure.

- All connections receive into one shared buffer. An event loop requests room and fills it in the same step, so
  the buffer never holds the bytes of two connections.
- A small frame is copied out of the shared buffer. A large frame is received straight into its own memory.
  Either way the frame does not share memory with later input, so a handler may keep views of it.
- A size prefix alone reserves little memory; a large frame's buffer grows as its bytes arrive. All connections share a
  budget for incomplete frames: the less is left, the smaller the first buffer.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

from ottla.net.server.byte_budget import ByteBudget
from ottla.net.spare_buffers import SpareBuffers

RECEIVE_BUFFER_BYTES = 64 * 1024
LARGE_FRAME_BYTES = 32 * 1024
"""From this size on a frame is received into its own memory instead of being copied."""
FIRST_ALLOCATION_BYTES = 256 * 1024
"""Memory that a size prefix alone can claim."""
TLS_HANDSHAKE = 0x1603
"""The first bytes of a client that uses TLS 1.x: a handshake record."""

Frame = bytes | memoryview

_read_size = Struct(">i").unpack_from


class FrameParser:
    """Fill `get_buffer()`, then call `feed()` with the number of bytes: it returns the frames they complete."""

    __slots__ = (
        "_budget",
        "_frame",
        "_frame_size",
        "_largest_frame",
        "_receive_view",
        "_spares",
        "_stash",
        "allocated_bytes",
        "buffer_was_full",
        "error",
        "filled",
        "max_frame_bytes",
    )

    def __init__(
        self, receive_view: memoryview, spares: SpareBuffers, max_frame_bytes: int, budget: ByteBudget[Any]
    ) -> None:
        self._budget = budget
        self._receive_view = receive_view
        self._spares = spares
        self.max_frame_bytes = max_frame_bytes
        self._stash = b""  # the bytes of an incomplete small frame
        self._frame: bytearray | None = None  # a large frame being received
        self._frame_size = 0
        self.filled = 0
        """How much of the large frame has arrived."""
        self.allocated_bytes = 0
        """Memory held for a large frame that is not complete."""
        self._largest_frame = FIRST_ALLOCATION_BYTES
        self.buffer_was_full = False
        """Whether the last `feed` filled the shared buffer: the peer has probably sent more."""
        self.error: str | None = None
        """Why the input cannot be split into frames. Frames before the error are still returned, none after it."""

    def get_buffer(self) -> memoryview:
        """Room for the next bytes."""
        if self._frame is not None:
            return memoryview(self._frame)[self.filled : self._frame_size]
        stash = self._stash
        if stash:
            # An incomplete frame continues in the shared buffer, so that a frame is always contiguous.
            self._receive_view[: len(stash)] = stash
            return self._receive_view[len(stash) :]
        return self._receive_view

    def feed(self, nbytes: int) -> Sequence[Frame]:
        """The frames that the next `nbytes` in the buffer complete."""
        if self._frame is not None:
            self.buffer_was_full = False
            self.filled += nbytes
            if self.filled == self._frame_size:
                return (self._take_large_frame(),)
            if self.filled >= len(self._frame):
                self._grow_large_frame()
            return ()
        if self.error is not None:
            return ()
        view = self._receive_view
        if not self._stash and 4 <= nbytes < RECEIVE_BUFFER_BYTES and _read_size(view)[0] == nbytes - 4:
            # The common case: exactly one frame has arrived.
            self.buffer_was_full = False
            if nbytes - 4 <= self.max_frame_bytes:
                return (bytes(view[4:nbytes]),)
        end = len(self._stash) + nbytes
        self._stash = b""
        frames: list[Frame] = []
        position = 0
        max_frame_bytes = self.max_frame_bytes
        while True:
            start = position + 4
            if start > end:
                break
            size: int = _read_size(view, position)[0]
            if not 0 <= size <= max_frame_bytes:
                self.error = f"invalid frame size {size} (limit {self.max_frame_bytes})"
                if size >> 16 == TLS_HANDSHAKE:
                    self.error += ": the client uses TLS, but this listener does not"
                return frames
            if start + size > end:
                if size + 4 >= LARGE_FRAME_BYTES:
                    self._start_large_frame(size, view[start:end])
                    position = end
                break
            position = start + size
            frames.append(bytes(view[start:position]))
        if position < end:
            self._stash = bytes(view[position:end])
        self.buffer_was_full = end == RECEIVE_BUFFER_BYTES and self._frame is None
        return frames

    def clear(self) -> None:
        """Drops the incomplete frame."""
        self._stash = b""
        self._frame = None
        self.allocated_bytes = 0

    def _start_large_frame(self, size: int, head: memoryview) -> None:
        # As much memory as the peer's earlier frames needed if plenty is left, or twice what it has sent.
        affordable = self._budget.share(32, 2 * LARGE_FRAME_BYTES, self._largest_frame)
        self._frame = frame = self._spares.take(min(size, max(affordable, 2 * len(head))))
        self._frame_size = size
        self.allocated_bytes = len(frame)
        self.filled = len(head)
        frame[: len(head)] = head

    def _grow_large_frame(self) -> None:
        assert self._frame is not None
        # Less than doubled: a peer that stalls here holds memory that it does not fill.
        grown = bytearray(min(self._frame_size, 3 * len(self._frame) // 2))
        grown[: self.filled] = self._frame
        self._frame = grown
        self.allocated_bytes = len(grown)

    def _take_large_frame(self) -> memoryview:
        frame = self._frame
        assert frame is not None
        self._frame = None
        self.allocated_bytes = 0
        self._largest_frame = max(self._largest_frame, self._frame_size)
        # Returned to the pool at once: the pool does not reuse a buffer while a view of it exists.
        view = memoryview(frame)[: self._frame_size]
        self._spares.give(frame)
        return view
