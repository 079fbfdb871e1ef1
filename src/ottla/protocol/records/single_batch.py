"""Finds the batch in the most common Produce request, which has one partition, without creating messages. Pure.

This file is plain Python. Where a compiler is available, `setup.py` also builds it as the extension `_single_batch`,
with the C types of `_single_batch.pxd`; `_speedups.py` picks the extension if it can be imported.
Increment INTERFACE whenever names or semantics change: `_speedups.py` then ignores an outdated build.
"""

from ottla.protocol.records.batch_layout import HEADER_SIZE

INTERFACE = 1
LONG_NAME = 127
"""From this length on, the length of a name takes two bytes."""


def find_single_batch(frame: bytes, position: int, by_id: bool) -> tuple[int, str | bytes, bytes, int, int, int] | None:
    """The content of a Produce request whose body starts at `position` of the frame.

    (acks, topic, the bytes that name the topic, partition index, start and end of the batch in the frame). `topic` is
    an id with `by_id` (v13 on), otherwise a name (v9 to v12). None for everything that only the general decoder reads:
    a transactional id, more than one partition, long names, tagged fields, records too short for a batch, and
    malformed requests.
    """
    stop = len(frame)
    topic_start = position + 8
    # No transactional id, and one topic: compact lengths count from 1. In between are acks and the timeout.
    if position < 0 or topic_start > stop or frame[position] != 0 or frame[position + 7] != 2:
        return None
    acks = frame[position + 1] << 8 | frame[position + 2]
    if acks >= 0x8000:
        acks -= 0x10000
    if by_id:
        name_start = topic_start
        size = 16
    else:
        name_start = topic_start + 1
        size = frame[topic_start] - 1 if topic_start < stop else -1
        if not 0 <= size < LONG_NAME:
            return None
    topic_end = name_start + size
    if topic_end + 5 > stop or frame[topic_end] != 2:
        return None
    index = frame[topic_end + 1] << 24 | frame[topic_end + 2] << 16 | frame[topic_end + 3] << 8 | frame[topic_end + 4]
    if index >= 0x80000000:
        index -= 0x100000000
    start = topic_end + 5
    size = 0
    shift = 0
    while True:
        if start >= stop or shift > 14:
            return None
        octet = frame[start]
        start += 1
        size |= (octet & 0x7F) << shift
        if octet < 0x80:
            break
        shift += 7
    end = start + size - 1
    # After the records, three empty sections of tagged fields.
    if end - start < HEADER_SIZE or end + 3 != stop or frame[end] or frame[end + 1] or frame[end + 2]:
        return None
    if by_id:
        topic = frame[topic_start:topic_end]
        return acks, topic, topic, index, start, end
    try:
        name = frame[name_start:topic_end].decode()
    except UnicodeDecodeError:
        return None
    return acks, name, frame[topic_start:topic_end], index, start, end
