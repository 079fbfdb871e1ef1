"""An awaitable that does nothing until it is awaited. Pure."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """Starts a coroutine when it is awaited.

    A connection that closes drops the responses that it has not awaited yet. Dropping a coroutine causes the warning
    "coroutine was never awaited"; dropping this does not, however deep it is nested.
    """

    __slots__ = ("_start",)

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._start = start

    def __await__(self) -> Generator[Any, None, T]:
        return self._start().__await__()
