"""What a consumer calls when partitions come and go."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ottla.errors import OttlaError
from ottla.types import TopicPartition


class RebalanceListener:
    """Override what is of interest; each method may be a plain or an async one. They are called inside poll().

    Within one generation of a group every member has come back from `on_partitions_revoked` before any is in
    `on_partitions_assigned`.

    >>> class Committing(RebalanceListener):
    ...     async def on_partitions_revoked(self, partitions):
    ...         await consumer.commit()
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Any:
        """These are about to go to somebody else. The last chance to commit, or to store what belongs to them."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Any:
        """These have come (none, if the group settled and this member got nothing new). The place for seek()."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Any:
        """These went without warning and may be somebody else's by now: commits for them would fail. Unless
        overridden, the same as being revoked.

        A `with` block that ends in an exception ends in here too, as not all that was given out is processed: nothing
        may be stored for it, and whoever does not override this hears nothing at all then.
        """
        return self.on_partitions_revoked(partitions)


def has_own_lost(listener: Any) -> bool:
    """Whether a listener has something of its own to do where partitions are lost."""
    method: Any = getattr(listener, "on_partitions_lost", None)
    method = getattr(method, "__wrapped__", method)
    return method is not None and getattr(method, "__func__", None) is not RebalanceListener.on_partitions_lost


def method_of(listener: Any, what: str) -> Callable[[list[TopicPartition]], Any] | None:
    """One method of a listener, if it has it; who knows nothing of losing partitions hears that they are revoked."""
    method = getattr(listener, what, None)
    if method is None and what == "on_partitions_lost":
        method = getattr(listener, "on_partitions_revoked", None)
    return method


async def tell(listener: Any, what: str, partitions: Iterable[TopicPartition]) -> None:
    """Calls one method of a listener, if it has it, and waits for it if it is async."""
    method = method_of(listener, what)
    if method is None:
        return
    result = method(sorted(partitions))
    if inspect.isawaitable(result):
        await result


def tell_here(listener: Any, what: str, partitions: Iterable[TopicPartition]) -> None:
    """The same for a listener of plain methods, in the thread of a blocking caller."""
    method = method_of(listener, what)
    if method is None:
        return
    result = method(sorted(partitions))
    if inspect.iscoroutine(result):
        result.close()
        raise OttlaError(f"{what} of the next listener is async", "Use AsyncConsumer and AsyncStoredOffsets.")
