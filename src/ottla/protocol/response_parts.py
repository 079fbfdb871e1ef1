"""A response too large to be built at once: its parts are taken when the connection can send them. Pure."""

from typing import Protocol

from ottla.protocol.primitives import Buffer


class Unread(Protocol):
    """Records that are still in a file."""

    def __len__(self) -> int: ...

    def read(self, at: int, size: int) -> bytes: ...


Part = Buffer | Unread


class ResponseParts:
    """A whole response frame, its size first, in parts: buffers, and records that are still in files."""

    __slots__ = ("_at", "_number", "_parts", "remaining")

    def __init__(self, parts: list[Part], size: int) -> None:
        self._parts = parts
        self._number = 0  # the first part that is not taken completely
        self._at = 0  # how many of its bytes are taken
        self.remaining = size
        """How many bytes are not taken yet."""

    def take(self, max_bytes: int) -> list[Buffer]:
        """The next bytes, at most `max_bytes`; none at the end. Raises what `Unread.read` raises."""
        parts, number, at = self._parts, self._number, self._at
        taken: list[Buffer] = []
        room = min(max_bytes, self.remaining)
        self.remaining -= room
        while room:
            part = parts[number]
            size = len(part) - at
            if size > room:
                size = room
            if size:
                if isinstance(part, (bytes, bytearray, memoryview)):
                    taken.append(part if size == len(part) else memoryview(part)[at : at + size])
                else:
                    taken.append(part.read(at, size))
            at += size
            room -= size
            if at == len(part):
                parts[number] = b""  # frees its memory once it is sent
                number, at = number + 1, 0
        self._number, self._at = number, at
        return taken
