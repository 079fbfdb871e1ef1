"""Which partition a record goes to: by its key as the Java client does, or sticky without one. Pure."""

import functools
from collections.abc import Callable, Sequence

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 with Kafka's seed, unsigned.

    >>> hex(murmur2(b"21"))
    '0xc5f2f8ec'
    """
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@functools.lru_cache(maxsize=16_384)
def _positive_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition that every Kafka client written in Java picks for this key.

    Keys come again and again, so their hashes are remembered: the hash itself costs microseconds in Python.
    """
    return _positive_hash(key) % partition_count


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
        self._current: dict[str, list[int]] = {}  # topic -> [partition, bytes it has had]

    def partition(self, topic: str, size_bytes: int) -> int:
        """The partition for a record of this size."""
        current = self._current.get(topic)
        if current is None or current[1] >= self._batch_size:
            candidates = self._available(topic)
            if current is not None and len(candidates) > 1:
                candidates = [partition for partition in candidates if partition != current[0]]
            current = self._current[topic] = [self._choose(candidates), 0]
        current[1] += size_bytes
        return current[0]

    def forget(self, topic: str) -> None:
        """Chooses afresh for the next record, because the partition in use has lost its leader."""
        self._current.pop(topic, None)
