"""Opens the log of one partition: recovers what the last run left, and restores the checkpointed offsets."""

from ottla.clock import Clock, MonotonicClock
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.open_files import OpenFiles
from ottla.log.partition_log import PartitionLog
from ottla.log.recovery import LogLoader
from ottla.log.segments.log_store import LogStore
from ottla.types import TopicPartition


def open_log(
    directory: str,
    topic_partition: TopicPartition,
    topic_id: bytes,
    config: TopicConfig,
    *,
    disk: Disk,
    clock: Clock,
    monotonic: MonotonicClock,
    clean_shutdown: bool,
    is_new: bool = False,
    log_start_offset: int = 0,
    high_watermark: int = 0,
    recovery_point: int = 0,
    first_dirty_offset: int = 0,
    files: OpenFiles | None = None,
) -> PartitionLog:
    """Opens the log in `directory`, which may be missing. OSError if its files cannot be used.

    With `is_new` the directory exists and is known to be empty.
    """
    files = OpenFiles(disk) if files is None else files
    if not is_new and not disk.exists(directory):
        disk.make_directories(directory)
    loader = LogLoader(
        directory, files=files, index_interval_bytes=config.index_interval_bytes, monotonic_ms=monotonic()
    )
    loaded = loader.load(
        clean_shutdown=clean_shutdown,
        recovery_point=recovery_point,
        first_offset=log_start_offset,
        is_new=is_new,
    )
    log = PartitionLog(
        directory,
        topic_partition,
        topic_id,
        config,
        store=LogStore(topic_partition, directory, config, files=files, segments=loaded.segments, monotonic=monotonic),
        producers=loaded.producers,
        leader_epochs=loaded.leader_epochs,
        clock=clock,
        monotonic=monotonic,
    )
    log.snapshot_offset = loaded.snapshot_offset
    log.log_end_offset = loaded.log_end_offset
    log.log_start_offset = max(log_start_offset, log.segments[0].base_offset)
    log.flushed_offset = loaded.log_end_offset
    if log.store.has_unsynced:
        log.flushed_offset = min(recovery_point, loaded.log_end_offset)
    for offset in () if clean_shutdown else log.snapshots.offsets():
        if offset >= recovery_point:
            # It may still be in the page cache only.
            log.store.add_snapshot(log.snapshots.path(offset))
    if log.log_start_offset > log.log_end_offset:
        log.truncate_fully(log.log_start_offset)
    log.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
    log.producers.on_high_watermark(log.high_watermark)
    log.leader_epochs.truncate_from_start(log.log_start_offset)
    active = log.segments.active
    log.first_dirty_offset = min(max(first_dirty_offset, log.log_start_offset), active.base_offset)
    return log
