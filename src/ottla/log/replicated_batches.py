"""Checks the batches that a leader sent, before its follower writes any of them. Pure."""

from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.records.record_batch import BatchHeader, check_crc, iter_batches
from ottla.types import TopicPartition


class ReplicatedBatches(NamedTuple):
    """Batches to append as they are, with their positions in what the leader sent."""

    batches: list[tuple[int, BatchHeader]]
    starts_inside: bool
    """The first batch begins before the log does."""


def check_batches(
    view: memoryview, topic_partition: TopicPartition, log_end_offset: int, is_empty: bool
) -> ReplicatedBatches:
    """The batches to append at the end of a log. KafkaError if one is damaged, or does not belong there.

    An incomplete batch at the end is ignored.
    """
    batches = list(iter_batches(view))
    next_offset = log_end_offset
    starts_inside = False
    if is_empty and batches and batches[0][1].base_offset < log_end_offset <= batches[0][1].last_offset:
        # The leader's log starts inside this batch, because of DeleteRecords. An empty log takes the whole batch, as
        # the leader has it, and starts at the same offset inside it (KAFKA-6975).
        starts_inside = True
        next_offset = batches[0][1].base_offset
    for position, header in batches:
        check_crc(view, position, header)
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{topic_partition}: the leader sent offset {header.base_offset}, expected {next_offset}",
            )
        next_offset = header.next_offset
    return ReplicatedBatches(batches, starts_inside)
