"""How far a reader is behind the end of its partitions, in records and in time. Pure.

The end of a partition is the last stable offset for read_committed readers, else the high watermark.
"""

from collections.abc import Mapping

from ottla.types import TopicPartition


def record_lag(position: int | None, end: int) -> int:
    """The number of offsets still to read: without a position, all of them.

    >>> record_lag(5, 8), record_lag(None, 8), record_lag(9, 8)
    (3, 8, 0)
    """
    return max(0, end - max(0, position or 0))


def total_record_lag(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int | None:
    """The lag over all partitions in `ends`; None if there are none, because then the lag is not known.

    >>> first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    >>> total_record_lag({first: 5}, {first: 8, second: 2})
    5
    """
    if not ends:
        return None
    return sum(record_lag(positions.get(partition), end) for partition, end in ends.items())


def time_lag_ms(records: int, first_timestamp_ms: int | None, now_ms: int) -> int | None:
    """The age of the first unread record: 0 if there is none, None if its timestamp is not known.

    >>> time_lag_ms(0, None, 1000), time_lag_ms(3, 400, 1000), time_lag_ms(3, None, 1000), time_lag_ms(3, 1200, 1000)
    (0, 600, None, 0)
    """
    if records == 0:
        return 0
    return None if first_timestamp_ms is None or first_timestamp_ms < 0 else max(0, now_ms - first_timestamp_ms)
