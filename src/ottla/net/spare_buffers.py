"""Reuses the memory of large frames: clearing new memory is expensive. Pure.

A fetch response or a full batch has megabytes. Clearing that much costs a good part of the time to receive it.
"""

from collections import deque
from sys import getrefcount


def _references_when_unused() -> int:
    """What getrefcount returns for a buffer that is only in the deque. It depends on the interpreter."""
    buffers = deque([bytearray(1)])
    buffer = buffers[0]
    return getrefcount(buffer)


UNUSED = _references_when_unused()


class SpareBuffers:
    """A pool of buffers. A buffer is reused once no view of it exists."""

    def __init__(self, count: int = 8, buffer_bytes_max: int = 2 * 1024 * 1024) -> None:
        """Keeps at most `count` buffers, none larger than `buffer_bytes_max`."""
        self._buffers: deque[bytearray] = deque(maxlen=count)
        self._buffer_bytes_max = buffer_bytes_max

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes with undefined content."""
        for index in range(len(self._buffers)):
            buffer = self._buffers[index]
            # A view of a frame that is still in use is one more reference.
            if size <= len(buffer) <= 4 * size and getrefcount(buffer) <= UNUSED:
                del self._buffers[index]
                return buffer
        return bytearray(size)

    def give(self, buffer: bytearray) -> None:
        if len(buffer) <= self._buffer_bytes_max:
            self._buffers.append(buffer)

    def view(self, size: int) -> memoryview:
        """A view of `size` bytes with undefined content. They return to the pool when the last view is gone."""
        buffer = self.take(size)
        self.give(buffer)
        return memoryview(buffer)[:size]

    def clear(self) -> None:
        self._buffers.clear()
