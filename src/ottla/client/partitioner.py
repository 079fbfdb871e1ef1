"""Which partition a record goes to: by its key as the Java client does, or sticky without one. Pure."""

from collections.abc import Callable, Sequence

from ottla.client.delivery import Sticky, murmur2, partition_for_key

__all__ = ["StickyPartitioner", "murmur2", "partition_for_key"]


class StickyPartitioner:
    """Records without a key stay with one partition until it has had a batch's worth, then move to another.

    Spreading them evenly one by one would fill no batch at all.
    """

    def __init__(
        self, batch_size: int, choose: Callable[[Sequence[int]], int], available: Callable[[str], Sequence[int]]
    ) -> None:
        """`choose` picks one of several partitions at random; `available(topic)` lists those that can be written to."""
        self._batch_size = max(1, batch_size)
        self._choose = choose
        self._available = available
        self._current: dict[str, Sticky] = {}

    def partition(self, topic: str, size_bytes: int) -> int:
        """The partition for a record of this size."""
        current = self._current.get(topic)
        if current is None or current.bytes_left <= 0:
            candidates = self._available(topic)
            if current is not None and len(candidates) > 1:
                candidates = [partition for partition in candidates if partition != current.partition]
            current = self._current[topic] = Sticky(self._choose(candidates), self._batch_size)
        current.bytes_left -= size_bytes
        return current.partition

    def find_current(self, topic: str) -> Sticky | None:
        """What `partition` goes by, until it chooses another: a record that takes a shorter way counts there, too."""
        return self._current.get(topic)

    def forget(self, topic: str) -> None:
        """Chooses afresh for the next record, because the topic is not what it was."""
        self._current.pop(topic, None)
