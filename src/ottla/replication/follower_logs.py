"""What a follower does with its log: appends what the leader sent, and removes what the leader does not have."""

import logging
from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.replication.maintenance import LogMaintenance
from ottla.replication.replica import Replica

log = logging.getLogger("ottla.replication")


class FollowerLogs:
    """The logs of the partitions that other brokers lead."""

    def __init__(self, maintenance: LogMaintenance) -> None:
        self._maintenance = maintenance

    def append(self, replica: Replica, records: Any) -> None:
        """Appends what the leader sent. KafkaError if it does not fit, or cannot be written."""
        if replica.storage_failure:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, replica.storage_failure)
        replica.log.append_replicated(records)
        replica.unreplicated_bytes += len(records)
        if not replica.upkeep.is_changed:
            self._maintenance.changed(replica)
        if replica.upkeep.flushes:
            self._maintenance.consider_flush(replica)

    def follow_watermarks(self, replica: Replica, high_watermark: int, log_start_offset: int) -> bool:
        """Adopts the leader's high watermark and log start offset, up to the end of this log.

        True if the log start offset has moved.
        """
        partition_log = replica.log
        if high_watermark > partition_log.high_watermark:
            partition_log.advance_high_watermark(high_watermark)
        if log_start_offset <= partition_log.log_start_offset:
            return False
        # At most to the high watermark: what is not known to be committed is not deleted (KAFKA-7104).
        before = partition_log.log_start_offset
        partition_log.delete_records_before(min(log_start_offset, partition_log.high_watermark))
        self._maintenance.changed(replica)
        return partition_log.log_start_offset > before

    def truncate(self, replica: Replica, offset: int) -> bool:
        """Removes what the leader does not have. True if offsets must be checkpointed before the next append."""
        partition_log = replica.log
        end, high_watermark = partition_log.log_end_offset, partition_log.high_watermark
        partition_log.truncate_to(offset)
        self._maintenance.changed(replica)
        removed = end - partition_log.log_end_offset
        if partition_log.log_end_offset < high_watermark:
            log.error(
                "partition %s: removed offsets %d to %d, of which those below %d were committed: the leader of epoch "
                "%d does not have them. Only an unclean leader election, or the loss of stored data, can do that",
                replica.topic_partition,
                partition_log.log_end_offset,
                end - 1,
                high_watermark,
                replica.leader_epoch,
            )
        elif removed:
            log.info(
                "partition %s: removed offsets %d to %d, which the leader of epoch %d does not have",
                replica.topic_partition,
                partition_log.log_end_offset,
                end - 1,
                replica.leader_epoch,
            )
        return removed > 0

    def start_over(self, replica: Replica, offset: int) -> None:
        """Deletes everything: the leader's log starts at `offset`, after the end of this one."""
        log.warning(
            "partition %s: starting over at offset %d, where the leader's log starts; this one ended at %d",
            replica.topic_partition,
            offset,
            replica.log.log_end_offset,
        )
        replica.log.truncate_fully(offset)
        self._maintenance.changed(replica)
