"""A data directory with many logs: locking, checkpoints, clean and unclean starts."""

import os
import resource
import time
from pathlib import Path

import pytest

from ottla.clock import MonotonicMs
from ottla.errors import OttlaError
from ottla.log.cleaning.log_cleaning import enforce_retention, plan_compaction
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.log_directory import LogDirectory, partition_of
from ottla.protocol.records.record_batch import build_batch
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from ottla.types import ZERO_UUID, TopicPartition
from tests.support.worlds.log_world import NOON, FailingDisk

ORDERS, PEOPLE = TopicPartition("my-orders", 12), TopicPartition("people", 0)
TOPIC_ID = bytes(range(16))


def opened(path: Path, disk: Disk | None = None, config: TopicConfig | None = None) -> LogDirectory:
    directory = LogDirectory.open(
        str(path), disk=disk or Disk(), clock=lambda: NOON, monotonic=lambda: MonotonicMs(NOON)
    )
    directory.load(None if config is None else lambda topic: config)
    return directory


def killed(directory: LogDirectory) -> None:
    """The process is killed: its locks and handles are released, nothing is written."""
    for log in directory.logs.values():
        log.store.close()
    directory.disk.close(directory._lock)  # noqa: SLF001 (a crash releases the lock without closing the directory)


def append(directory: LogDirectory, partition: TopicPartition, *values: bytes) -> None:
    log = directory.logs[partition]
    log.append(build_batch([(NOON, b"k", value, ()) for value in values]), leader_epoch=3)
    log.advance_high_watermark(log.log_end_offset)


def test_logs_are_reopened_with_their_topic_ids_and_offsets(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    directory.create_log(PEOPLE, TOPIC_ID[::-1], TopicConfig())
    append(directory, ORDERS, b"a", b"b")
    directory.close()
    again = opened(tmp_path)
    assert again.was_clean
    assert set(again.logs) == {ORDERS, PEOPLE}
    assert again.logs[ORDERS].topic_id == TOPIC_ID
    assert again.logs[PEOPLE].topic_id == TOPIC_ID[::-1]
    log = again.logs[ORDERS]
    assert (log.log_end_offset, log.high_watermark, log.flushed_offset) == (2, 2, 2)
    assert log.leader_epochs.entries() == [(3, 0)]
    again.close()


def test_the_file_names_and_formats_are_kafkas(tmp_path: Path) -> None:
    directory = opened(tmp_path, config=TopicConfig(cleanup_policy=("compact",)))
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a", b"b" * 70_000)
    directory.logs[ORDERS].delete_records_before(1)
    directory.close()
    names = {
        ".kafka_cleanshutdown",
        ".lock",
        "cleaner-offset-checkpoint",
        "log-start-offset-checkpoint",
        "my-orders-12",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    }
    assert set(os.listdir(tmp_path)) == names
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nmy-orders 12 2\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nmy-orders 12 2\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nmy-orders 12 1\n"
    assert (tmp_path / "my-orders-12" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 1\n"
    assert "AAECAwQFBgcICQoLDA0ODw" in (tmp_path / "my-orders-12" / "partition.metadata").read_text()


def test_a_directory_can_be_opened_by_one_process_only(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    with pytest.raises(OttlaError, match=f"{tmp_path} is in use by process {os.getpid()}"):
        opened(tmp_path)
    directory.close()
    opened(tmp_path).close()


def test_a_crash_is_detected_and_recovered(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a", b"b")
    directory.close()
    directory = opened(tmp_path)
    append(directory, ORDERS, b"c")
    killed(directory)
    again = opened(tmp_path)
    log = again.logs[ORDERS]
    assert not again.was_clean
    assert (log.log_end_offset, log.high_watermark, log.flushed_offset) == (3, 2, 2)
    again.close()
    assert opened(tmp_path).was_clean


def test_recovery_after_a_crash_starts_from_the_checkpoint(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a", b"b")
    directory.logs[ORDERS].flush()
    directory.checkpoint()
    killed(directory)
    log = opened(tmp_path).logs[ORDERS]
    assert (log.high_watermark, log.flushed_offset) == (2, 2)


def test_a_checkpoint_without_change_writes_nothing(tmp_path: Path) -> None:
    disk = FailingDisk()
    directory = opened(tmp_path, disk)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a")
    directory.checkpoint()
    disk.calls.clear()
    directory.checkpoint()
    assert disk.calls == []


def test_a_checkpoint_is_planned_on_the_loop_and_written_in_a_thread(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a")
    write = directory.plan_checkpoint()
    append(directory, ORDERS, b"b")
    write()
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nmy-orders 12 1\n"


def test_leader_epochs_are_written_before_the_recovery_point_that_relies_on_them(tmp_path: Path) -> None:
    disk = FailingDisk()
    directory = opened(tmp_path, disk)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a")
    directory.logs[ORDERS].flush()
    disk.fails("write_file")
    with pytest.raises(OSError, match="write_file"):
        directory.checkpoint()
    disk.works()
    directory.checkpoint()
    killed(directory)
    assert opened(tmp_path).logs[ORDERS].leader_epochs.entries() == [(3, 0)]


def test_corrupt_checkpoints_lose_no_data(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a", b"b")
    directory.close()
    for name in ("recovery-point", "replication"):
        (tmp_path / f"{name}-offset-checkpoint").write_bytes(b"\xff garbage")
    log = opened(tmp_path).logs[ORDERS]
    assert (log.log_end_offset, log.high_watermark) == (2, 0)


def test_a_log_that_cannot_be_opened_does_not_affect_the_others(tmp_path: Path) -> None:
    class OneBadDisk(Disk):
        def read_file(self, path: str) -> bytes:
            if "people-0" in path:
                raise OSError(5, "bad sector", path)
            return super().read_file(path)

    directory = opened(tmp_path)
    for partition in (ORDERS, PEOPLE):
        directory.create_log(partition, TOPIC_ID, TopicConfig())
        append(directory, partition, b"a")
    directory.close()
    again = opened(tmp_path, OneBadDisk())
    assert set(again.logs) == {ORDERS}
    assert "bad sector" in again.failed[PEOPLE]
    again.close()
    assert "people 0 1" in (tmp_path / "recovery-point-offset-checkpoint").read_text(), "its offset is kept"
    assert opened(tmp_path).logs[PEOPLE].log_end_offset == 1


def test_a_directory_without_partition_metadata_has_no_topic_id(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    directory.close()
    (tmp_path / "my-orders-12" / "partition.metadata").unlink()
    assert opened(tmp_path).logs[ORDERS].topic_id == ZERO_UUID


def test_a_deleted_log_is_removed_from_the_checkpoints_and_not_loaded_again(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a")
    directory.checkpoint()
    path = directory.delete_log(ORDERS)
    assert os.path.exists(path)
    fresh = directory.create_log(ORDERS, TOPIC_ID[::-1], TopicConfig())
    assert fresh.log_end_offset == 0
    directory.close()
    again = opened(tmp_path)
    assert again.leftovers == [path], "for the broker to remove in the background"
    assert again.logs[ORDERS].topic_id == TOPIC_ID[::-1]
    again.close()


def test_a_failed_log_creation_leaves_no_files(tmp_path: Path) -> None:
    disk = FailingDisk()
    directory = opened(tmp_path, disk)
    disk.fails("append")
    with pytest.raises(OSError, match="append"):
        directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    disk.works()
    assert directory.logs == {}
    assert not (tmp_path / "my-orders-12").exists()
    assert directory.create_log(ORDERS, TOPIC_ID, TopicConfig()).log_end_offset == 0


def test_a_failed_log_creation_removes_no_directory_that_it_found(tmp_path: Path) -> None:
    disk = FailingDisk()
    directory = opened(tmp_path, disk)
    found = tmp_path / "my-orders-12" / "of-the-user"
    found.parent.mkdir()
    found.write_text("precious")
    disk.fails("append")
    with pytest.raises(OSError, match="append"):
        directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    assert found.exists()


def test_a_failed_close_writes_no_clean_shutdown_file(tmp_path: Path) -> None:
    disk = FailingDisk()
    directory = opened(tmp_path, disk)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a")
    disk.fails("sync")
    directory.close()
    again = opened(tmp_path)
    assert not again.was_clean
    assert again.logs[ORDERS].log_end_offset == 1


class CountingDisk(Disk):
    """Counts what is slow: syncs and new files."""

    def __init__(self) -> None:
        self.syncs = self.whole_syncs = 0
        self.created: list[str] = []

    def sync(self, handle: int) -> None:
        self.syncs += 1
        super().sync(handle)

    def sync_all(self, handle: int) -> None:
        self.whole_syncs += 1
        super().sync_all(handle)

    def overwrite_file(self, path: str, data: bytes) -> None:
        self.created.append(path)
        super().overwrite_file(path, data)


@pytest.mark.skipif(not Disk().can_sync_all, reason="needs syncfs of Linux 5.8")
def test_hundreds_of_logs_are_closed_with_one_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    directory = opened(tmp_path, disk)
    partitions = [TopicPartition("many", number) for number in range(300)]
    for partition in partitions:
        directory.create_log(partition, TOPIC_ID, TopicConfig())
        append(directory, partition, b"a" if partition.partition else b"a" * 70_000)
    directory.close()
    assert disk.whole_syncs == 1
    assert disk.syncs < 10, "the checkpoint files"
    assert not list(tmp_path.glob("*/*.tmp"))
    again = opened(tmp_path)
    assert again.was_clean
    assert all(log.flushed_offset == log.high_watermark == 1 for log in again.logs.values())
    assert sorted(os.listdir(tmp_path / "many-1")) == ["00000000000000000000.log", "partition.metadata"]
    assert (tmp_path / "many-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n", "not a small log"


@pytest.mark.parametrize("operation", ["sync_all", "rename"])
def test_hundreds_of_logs_that_cannot_be_synced_are_not_closed_cleanly(operation: str) -> None:
    platter = SimPlatter(SimLoop(seed=1))
    disk = platter.disk()
    directory = opened(Path("/data"), disk)
    for number in range(300):
        directory.create_log(TopicPartition("many", number), TOPIC_ID, TopicConfig())
        append(directory, TopicPartition("many", number), b"a" if number else b"a" * 70_000)
    platter.fail_next(operation)
    directory.close()
    disk.detach()
    again = opened(Path("/data"), platter.disk())
    assert not again.was_clean
    assert all(log.log_end_offset == 1 for log in again.logs.values())


def test_an_empty_log_needs_neither_a_sync_nor_new_files_to_be_closed(tmp_path: Path) -> None:
    disk = CountingDisk()
    directory = opened(tmp_path, disk)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    directory.close()
    assert sorted(os.listdir(tmp_path / "my-orders-12")) == ["00000000000000000000.log", "partition.metadata"]
    again = opened(tmp_path, disk)
    assert again.was_clean
    disk.syncs = 0
    again.checkpoint()
    assert disk.syncs == 0


def test_a_small_log_needs_no_epochs_file_after_a_crash_or_a_stop(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a", b"b")
    directory.logs[ORDERS].flush()
    directory.checkpoint()
    killed(directory)
    again = opened(tmp_path)
    assert again.logs[ORDERS].leader_epochs.entries() == [(3, 0)]
    again.close()
    assert not (tmp_path / "my-orders-12" / "leader-epoch-checkpoint").exists()
    assert opened(tmp_path).logs[ORDERS].leader_epochs.entries() == [(3, 0)]


def test_a_large_log_gets_its_epochs_file_with_the_next_checkpoint(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a" * 70_000)
    directory.checkpoint()
    assert (tmp_path / "my-orders-12" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"


def test_an_epochs_file_without_entries_is_updated_too(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a")
    log.save_epochs()
    log.truncate_fully(5)
    directory.checkpoint()
    killed(directory)
    again = opened(tmp_path)
    append(again, ORDERS, b"b")
    again.checkpoint()
    killed(again)
    assert opened(tmp_path).logs[ORDERS].leader_epochs.entries() == [(3, 5)]


def test_a_checkpoint_covers_only_the_logs_that_changed(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    for partition in (ORDERS, PEOPLE):
        directory.create_log(partition, TOPIC_ID, TopicConfig())
        append(directory, partition, b"a")
    directory.plan_checkpoint([directory.logs[ORDERS]])()
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nmy-orders 12 1\n"
    directory.plan_checkpoint([directory.logs[PEOPLE]])()
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n2\nmy-orders 12 1\npeople 0 1\n"


def test_a_checkpoint_in_progress_ends_early_when_the_directory_is_about_to_close(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    append(directory, ORDERS, b"a" * 70_000)
    write = directory.plan_checkpoint()
    directory.begin_close()
    write()
    epochs = tmp_path / "my-orders-12" / "leader-epoch-checkpoint"
    assert not epochs.exists()
    directory.close()
    assert epochs.exists()


def test_settings_are_looked_up_by_topic(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_log(ORDERS, TOPIC_ID, TopicConfig())
    directory.close()
    config = TopicConfig(max_message_bytes=77)
    assert opened(tmp_path, config=config).logs[ORDERS].config.max_message_bytes == 77


@pytest.mark.parametrize(
    "name", ["meta.properties", "a", "-1", "a-", "a-b", "lost+found", "a-²", "a-٣", "a-+1", "a- 1"]
)
def test_other_names_are_not_partitions(name: str) -> None:
    assert partition_of(name) is None


@pytest.mark.slow
def test_a_thousand_partitions_open_quickly_and_use_no_file_descriptors(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    batch = build_batch([(NOON, b"k", b"v" * 50, ())] * 3)
    for number in range(1000):
        log = directory.create_log(TopicPartition("many", number), TOPIC_ID, TopicConfig())
        log.append(batch, leader_epoch=1)
    assert len(directory.files) <= directory.files.limit
    directory.close()
    again = LogDirectory.open(str(tmp_path), disk=Disk(), clock=lambda: NOON, monotonic=lambda: MonotonicMs(NOON))
    before = len(os.listdir("/proc/self/fd"))
    started = time.process_time()
    again.load()
    took = time.process_time() - started
    assert len(again.logs) == 1000
    assert all(log.log_end_offset == 3 for log in again.logs.values())
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert took < 3, "well under a second of CPU time"
    for log in again.logs.values():
        log.roll_if_due()
        enforce_retention(log, NOON)
        plan_compaction(log, NOON)
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "checking idle logs leaves no file open"
    again.close()


def test_the_open_file_limit_leaves_room_for_connections(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 64 <= opened(tmp_path).files.limit <= max(64, soft // 2)
