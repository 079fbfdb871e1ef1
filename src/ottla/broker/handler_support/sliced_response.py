"""A response with a very long array, built and encoded a slice at a time, so that other requests are served meanwhile.

A request may name 50,000 groups, or request all groups. Built and encoded in one step, its response would block every
other client for seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from ottla.protocol.primitives import Buffer, uvarint
from ottla.protocol.schema import Message, Struct

T = TypeVar("T")
M = TypeVar("M", bound=Message)

SLICE = 200
"""How many elements are built in one step: a few milliseconds of work."""


class SlicedResponse:
    """A message whose field `array` is added with `add`, slice by slice. Return it from a handler in place of the
    message, in stage two."""

    carries_records = True  # it is large: joined without another copy

    def __init__(self, message: Message, array: str, version: int, holder: Struct | None = None) -> None:
        """The other fields of `message` must have their final values; `array` must be empty. It is a field of the
        message, or of `holder`, a struct in it."""
        self.throttle_time_ms: int = getattr(message, "throttle_time_ms", 0)
        """The throttle time of the message."""
        self._message = message
        self._holder = message if holder is None else holder
        self._array = array
        self._version = version
        self._empty = message.encode(version)
        self._is_compact = message.is_flexible(version)
        self._start = -1
        """Where the array starts in the encoded message; known once there is an element."""
        self._count = 0
        self._pieces: list[bytes] = []

    async def add(self, elements: list[Any]) -> None:
        """Encodes more elements, and lets other tasks run."""
        if elements:
            if self._start < 0:
                self._start = self._find_start(elements[0])
            encoded = self._encode(elements)
            after = len(self._empty) - self._start - len(self._length(0))
            self._pieces.append(encoded[self._start + len(self._length(len(elements))) : len(encoded) - after])
            self._count += len(elements)
        await asyncio.sleep(0)

    def encode_chunks(self, chunks: list[Buffer], version: int) -> None:
        """As `Message.encode_chunks`."""
        assert version == self._version, "it is encoded for one version"
        if not self._count:
            chunks.append(self._empty)
            return
        chunks += (self._empty[: self._start], self._length(self._count), *self._pieces)
        chunks.append(self._empty[self._start + len(self._length(0)) :])

    def encode(self, version: int) -> bytes:
        chunks: list[Buffer] = []
        self.encode_chunks(chunks, version)
        return b"".join(chunks)

    def _find_start(self, element: Any) -> int:
        """The message without elements and with one element are equal up to the array's length."""
        with_one = self._encode([element])
        position = next(i for i, (a, b) in enumerate(zip(self._empty, with_one, strict=False)) if a != b)
        # The lengths 0 and 1 differ in their last byte.
        return position + 1 - len(self._length(0))

    def _encode(self, elements: list[Any]) -> bytes:
        setattr(self._holder, self._array, elements)
        try:
            return self._message.encode(self._version)
        finally:
            setattr(self._holder, self._array, [])

    def _length(self, count: int) -> bytes:
        return bytes(uvarint(count + 1)) if self._is_compact else count.to_bytes(4, "big")


async def answer_each(
    message: M, array: str, version: int, asked: Sequence[T], answer: Callable[[T], Awaitable[Any]], size: int = SLICE
) -> "M | SlicedResponse":
    """The response with one element for each item of a request; in slices if there are many."""
    if len(asked) <= size:
        setattr(message, array, [await answer(item) for item in asked])
        return message
    response = SlicedResponse(message, array, version)
    for items in in_slices(asked, size):
        await response.add([await answer(item) for item in items])
    return response


def in_slices(items: Iterable[T], size: int = SLICE) -> Iterator[list[T]]:
    """
    >>> list(in_slices("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
