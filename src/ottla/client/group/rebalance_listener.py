"""The listener that a consumer calls when partitions are assigned, revoked or lost."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ottla.errors import OttlaError
from ottla.types import TopicPartition


class RebalanceListener:
    """Override the methods you need; each may be a plain or an async method. They are called inside poll().

    Within one generation of a group, every member has returned from `on_partitions_revoked` before any member is in
    `on_partitions_assigned`.

    >>> class Committing(RebalanceListener):
    ...     async def on_partitions_revoked(self, partitions):
    ...         await consumer.commit()
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Any:
        """These partitions are about to move to another member. The last chance to commit or to save their state."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Any:
        """These partitions are new; the list is empty if a rebalance brought none. The place for seek()."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Any:
        """These partitions were lost without a rebalance and may belong to other members already, so commits for them
        fail. By default calls `on_partitions_revoked`.

        Also called when a `with` block ends with an exception: not all records that were returned have been processed,
        so nothing may be committed or saved for them. In that case only an overridden method is called.
        """
        return self.on_partitions_revoked(partitions)


def has_own_lost(listener: Any) -> bool:
    """Whether a listener overrides on_partitions_lost."""
    method: Any = getattr(listener, "on_partitions_lost", None)
    method = getattr(method, "__wrapped__", method)
    return method is not None and getattr(method, "__func__", None) is not RebalanceListener.on_partitions_lost


def method_of(listener: Any, what: str) -> Callable[[list[TopicPartition]], Any] | None:
    """A method of a listener, or None. Without on_partitions_lost it is on_partitions_revoked."""
    method = getattr(listener, what, None)
    if method is None and what == "on_partitions_lost":
        method = getattr(listener, "on_partitions_revoked", None)
    return method


async def notify(listener: Any, what: str, partitions: Iterable[TopicPartition]) -> None:
    """Calls a method of a listener, if it has it, and awaits it if it is async."""
    method = method_of(listener, what)
    if method is None:
        return
    result = method(sorted(partitions))
    if inspect.isawaitable(result):
        await result


def notify_blocking(listener: Any, what: str, partitions: Iterable[TopicPartition]) -> None:
    """Calls a plain method of a listener on the caller's thread."""
    method = method_of(listener, what)
    if method is None:
        return
    result = method(sorted(partitions))
    if inspect.iscoroutine(result):
        result.close()
        raise OttlaError(f"{what} of the listener is async", "Use AsyncConsumer and AsyncStoredOffsets.")
