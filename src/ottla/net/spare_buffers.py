"""Memory of large frames that were dealt with, for the next ones: fresh memory has to be cleared first. Pure.

A fetch brings megabytes, and so does a full batch: clearing as much costs a good part of what receiving it does.
"""

from collections import deque
from sys import getrefcount


def _references_when_unused() -> int:
    """What getrefcount says of a buffer that is only in the deque: interpreters count a variable or do not."""
    buffers = deque([bytearray(1)])
    buffer = buffers[0]
    return getrefcount(buffer)


UNUSED = _references_when_unused()


class SpareBuffers:
    """Some buffers, each given out once nobody looks at what was in it last."""

    def __init__(self, count: int = 8, buffer_bytes_max: int = 2 * 1024 * 1024) -> None:
        """At most so many are kept, and none that is larger."""
        self._buffers: deque[bytearray] = deque(maxlen=count)
        self._buffer_bytes_max = buffer_bytes_max

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes with anything in it."""
        for index in range(len(self._buffers)):
            buffer = self._buffers[index]
            # A view of a frame that somebody kept is one reference more.
            if size <= len(buffer) <= 4 * size and getrefcount(buffer) <= UNUSED:
                del self._buffers[index]
                return buffer
        return bytearray(size)

    def give(self, buffer: bytearray) -> None:
        if len(buffer) <= self._buffer_bytes_max:
            self._buffers.append(buffer)

    def view(self, size: int) -> memoryview:
        """So many bytes with anything in them, which come back by themselves when the last view of them is gone."""
        buffer = self.take(size)
        self.give(buffer)
        return memoryview(buffer)[:size]

    def clear(self) -> None:
        self._buffers.clear()
