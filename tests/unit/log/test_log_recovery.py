"""Reopening a log: after a clean shutdown, kill -9 or a torn write, and with corrupt files. Spec: R6."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.log.checkpoints import encode_epochs
from ottla.log.disk import Disk
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.record_batch import iter_batches
from tests.support.worlds.log_world import FailingDisk, LogWorld, find_by_time

SMALL: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 150}


def filled(tmp_path: Path, count: int = 30, **settings: Any) -> LogWorld:
    world = LogWorld(tmp_path, **(SMALL | settings))
    for number in range(count):
        world.leader_epoch = number // 10
        world.produce(7, f"value-{number}")
    return world


def active_path(world: LogWorld, suffix: str = ".log") -> Path:
    return Path(world.log.segments.active.path(suffix))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(bytes(data))


def expected(count: int = 30) -> list[str]:
    return [f"value-{number}" for number in range(count)]


# --- a clean stop -----------------------------------------------------------------------------------------


def test_a_clean_restart_restores_everything(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.produce(8, "open", transactional=True)
    before = (world.read_batches(), world.log.leader_epochs.entries(), world.log.log_end_offset)
    world.restart()
    assert (world.read_batches(), world.log.leader_epochs.entries(), world.log.log_end_offset) == before
    assert world.log.first_unstable_offset == 30
    assert world.log.high_watermark == world.log.flushed_offset == 31
    assert not world.log.has_unsynced


def test_duplicates_are_recognised_across_a_restart(tmp_path: Path) -> None:
    """Spec: D3. Any of the last five batches can be retried."""
    world = filled(tmp_path)
    world.restart()
    for sequence in range(25, 30):
        again = world.append("x", producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert again.duplicate
        assert again.base_offset == sequence
    assert world.values() == expected()


def test_a_clean_start_reads_only_the_end_of_the_log(tmp_path: Path) -> None:
    world = filled(tmp_path, 2000, segment_bytes=1 << 20)
    read = 0

    class CountingDisk(Disk):
        def pread(self, handle: int, size: int, offset: int) -> bytes:
            nonlocal read
            data = super().pread(handle, size, offset)
            read += len(data)
            return data

    world.disk = CountingDisk()
    world.restart()
    assert world.log.log_end_offset == 2000
    assert 0 < read < 5000


def test_a_clean_start_leaves_no_files_open(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.restart()
    assert len(world.log.store.files) == 0


def test_an_empty_log_is_reopened_empty(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    assert world.restart().log_end_offset == 0
    assert world.crash().log_end_offset == 0


def test_damaged_files_are_recovered_despite_a_clean_shutdown_file(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.log.close()
    path = active_path(world)
    path.write_bytes(path.read_bytes()[:-3])
    world.open(recovery_point=30)
    assert world.values() == expected(29)


# --- kill -9 ----------------------------------------------------------------------------------------------


def test_a_killed_process_loses_no_written_records(tmp_path: Path) -> None:
    world = filled(tmp_path)
    batches, epochs = world.read_batches(), world.log.leader_epochs.entries()
    world.crash()
    assert world.read_batches() == batches
    assert world.log.leader_epochs.entries() == epochs
    assert world.append("x", producer_id=7, producer_epoch=0, base_sequence=29).duplicate
    assert world.log.flushed_offset == 0, "it may still be in the page cache only"
    assert world.log.has_unsynced


def test_transactions_survive_a_kill(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, **SMALL)
    world.produce(7, "doomed", transactional=True)
    for number in range(25):
        world.append(f"value-{number}")
    world.produce(8, "open", transactional=True)
    world.ends(7, abort=True)
    world.crash()
    assert world.log.first_unstable_offset == 26
    assert world.log.aborted_transactions(0, 99) == [AbortedTransaction(7, 0, 27, 26)]
    world.ends(8, abort=True)
    assert world.log.aborted_transactions(0, 99)[1] == AbortedTransaction(8, 26, 28, 29)


def test_a_log_truncated_at_any_byte_ends_at_its_last_complete_batch(tmp_path: Path) -> None:
    """Every byte position of the last three batches: complete batches are kept, and appends continue from there."""
    world = filled(tmp_path / "origin", 8)
    world.log.close()
    path = active_path(world)
    data = path.read_bytes()
    ends = [position + header.size_bytes for position, header in iter_batches(data)]
    for size in range(ends[-4], len(data)):
        shutil.copytree(world.directory, tmp_path / "copy" / "orders-0")
        copy = LogWorld.__new__(LogWorld)
        copy.__dict__.update(world.__dict__, directory=str(tmp_path / "copy" / "orders-0"), sequences={(7, 0): 0})
        (tmp_path / "copy" / "orders-0" / path.name).write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        copy.open(clean=False)
        assert copy.log.log_end_offset == whole
        assert copy.values() == expected(whole)
        again = copy.append("next", producer_id=7, producer_epoch=0, base_sequence=whole)
        assert (again.base_offset, again.duplicate) == (whole, False)
        assert copy.crash().log_end_offset == whole + 1
        copy.log.store.close()
        shutil.rmtree(tmp_path / "copy")


def test_zeros_and_garbage_after_the_last_batch_are_truncated(tmp_path: Path) -> None:
    """After a power failure a file can have its new size without its new content."""
    for number, tail in enumerate((bytes(1), bytes(60), bytes(61), bytes(5000), b"\xff" * 100, b"garbage" * 50)):
        world = filled(tmp_path / str(number), 5)
        with open(active_path(world), "ab") as file:
            file.write(tail)
        world.crash()
        assert world.values() == expected(5)
        assert world.append("next").base_offset == 5


def test_a_wrong_byte_above_the_recovery_point_ends_the_log_there(tmp_path: Path) -> None:
    world = filled(tmp_path, 8)
    positions = [position for position, _ in iter_batches(active_path(world).read_bytes())]
    flip(active_path(world), positions[5] + 70)
    world.crash(recovery_point=3)
    assert world.values() == expected(5)


def test_segments_after_a_truncated_one_are_removed(tmp_path: Path) -> None:
    world = filled(tmp_path, 30)
    second = world.log.segments[1]
    flip(Path(second.path(".log")), 70)
    world.crash(recovery_point=0)
    assert world.values() == expected(second.base_offset)
    assert len(world.log.segments) == 2
    assert world.log.leader_epochs.latest == (second.base_offset - 1) // 10, (
        "an epoch none of whose records is left is forgotten"
    )
    assert all(int(name[:20]) <= second.base_offset for name in world.names(".snapshot"))


def test_checksums_are_verified_from_the_recovery_point_only(tmp_path: Path) -> None:
    """Synced bytes are not verified again, so that the start is quick for a log of any size."""
    world = filled(tmp_path, 8)
    world.checks_reload = False
    flip(active_path(world), 70)
    assert world.crash(recovery_point=3).log_end_offset == 8


def test_corruption_below_the_recovery_point_affects_only_its_readers(tmp_path: Path) -> None:
    world = filled(tmp_path, 30, segment_bytes=1 << 20)
    world.checks_reload = False
    world.log.close()
    world.open(recovery_point=30)
    positions = [position for position, _ in iter_batches(active_path(world).read_bytes())]
    flip(active_path(world), positions[10] + 16)
    world.crash(recovery_point=30)
    assert world.log.log_end_offset == 30
    assert world.values(20) == expected()[20:]
    with pytest.raises(KafkaError) as caught:
        world.log.read(10, 1000, upper_bound=30)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert world.append("still writable").base_offset == 30


def test_corruption_in_an_old_segment_affects_only_its_readers(tmp_path: Path) -> None:
    world = filled(tmp_path, 30)
    world.checks_reload = False
    first = world.log.segments[0]
    flip(Path(first.path(".log")), 16)
    first.close()
    with pytest.raises(KafkaError) as caught:
        world.log.read(0, 1000, upper_bound=30)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert world.values(20) == expected()[20:]
    world.log.close()
    assert world.open(recovery_point=30).log_end_offset == 30, "the log can still be opened"
    assert world.values(20) == expected()[20:]


def test_the_log_start_offset_is_kept_even_beyond_the_recovered_end(tmp_path: Path) -> None:
    world = filled(tmp_path, 8)
    world.log.store.close()
    path = active_path(world)
    path.write_bytes(path.read_bytes()[:200])
    world.open(clean=False, log_start_offset=6, high_watermark=8)
    assert (world.log.log_start_offset, world.log.log_end_offset) == (6, 6)


def test_the_high_watermark_is_never_above_the_recovered_end(tmp_path: Path) -> None:
    world = filled(tmp_path, 8)
    world.log.store.close()
    path = active_path(world)
    path.write_bytes(path.read_bytes()[:300])
    world.open(clean=False, high_watermark=8)
    assert world.log.high_watermark == world.log.log_end_offset < 8


# --- missing and damaged helpers --------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "zeros", "garbage", "wrong"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_corrupt_index_is_rebuilt(tmp_path: Path, suffix: str, damage: str, clean: bool) -> None:
    world = filled(tmp_path)
    if clean:
        world.log.close()
    else:
        world.log.store.close()
    for segment in world.log.segments:
        path = Path(segment.path(suffix))
        data = path.read_bytes() if path.exists() else b""
        if damage == "missing":
            path.unlink(missing_ok=True)
        elif damage == "wrong" and suffix == ".index" and data:
            path.write_bytes(bytes(3) + bytes([data[3] + 1]) + data[4:])
        else:
            changed = {"empty": b"", "torn": data[:-5], "zeros": bytes(len(data)), "garbage": b"\x7f" * len(data)}
            path.write_bytes(changed.get(damage, data))
    world.open(clean=clean, recovery_point=30 if clean else 0)
    assert world.values() == expected()
    for offset in range(30):
        assert world.values(offset) == expected()[offset:]
    found = find_by_time(world.log, world.now, upper_bound=30)
    assert found is not None
    assert found.offset == 0


@pytest.mark.parametrize("damage", ["missing", "torn", "wrong"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_corrupt_producer_snapshot_is_replaced_by_replaying_the_log(tmp_path: Path, damage: str, clean: bool) -> None:
    world = filled(tmp_path)
    world.log.close()
    for name in world.names(".snapshot"):
        path = Path(world.directory) / name
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "torn":
            path.write_bytes(data[: len(data) // 2])
        else:
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    world.open(clean=clean, recovery_point=30 if clean else 0)
    assert world.append("x", producer_id=7, producer_epoch=0, base_sequence=26).duplicate
    assert world.append("next", producer_id=7, producer_epoch=0, base_sequence=30).base_offset == 30


def test_after_a_kill_the_records_override_an_old_leader_epochs_file(tmp_path: Path) -> None:
    """KAFKA-10706: a file that is wrong about an epoch's start makes leader and follower disagree permanently."""
    world = LogWorld(tmp_path)
    world.append("zero", "one")
    world.log.save_epochs()
    path = Path(world.directory) / "leader-epoch-checkpoint"
    path.write_bytes(encode_epochs([(0, 0), (1, 4)]))  # Offsets 2 and 3 had epoch 0 before they were truncated.
    world.leader_epoch = 1
    world.append("two", "three")
    world.append("four")
    world.crash(recovery_point=0)
    assert world.log.leader_epochs.entries() == [(0, 0), (1, 2)]


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_lost_leader_epochs_are_rebuilt_from_the_log(tmp_path: Path, damage: str) -> None:
    world = filled(tmp_path)
    world.log.close()
    path = Path(world.directory) / "leader-epoch-checkpoint"
    path.unlink() if damage == "missing" else path.write_bytes(b"garbage")
    world.open(recovery_point=30)
    assert world.log.leader_epochs.entries() == [(0, 0), (1, 10), (2, 20)]


@pytest.mark.parametrize("damage", [b"", b"x", bytes(68), b"\xff" * 34])
def test_a_corrupt_transaction_index_is_rebuilt(tmp_path: Path, damage: bytes) -> None:
    world = LogWorld(tmp_path, **SMALL)
    for number in range(12):
        world.produce(7, f"value-{number}", transactional=True)
        world.ends(7, abort=True)
    aborted = world.log.aborted_transactions(0, 99)
    assert len(aborted) == 12
    world.log.close()
    for name in world.names(".txnindex"):
        # An empty file is a valid index without entries; other damage is detected.
        (Path(world.directory) / name).write_bytes(damage or b"\x00")
    world.open(recovery_point=24)
    assert world.log.aborted_transactions(0, 99) == aborted
    world.restart()
    assert world.log.aborted_transactions(0, 99) == aborted


def test_a_snapshot_beyond_the_log_end_is_removed(tmp_path: Path) -> None:
    world = filled(tmp_path, 8)
    world.log.close()
    path = active_path(world)
    data = path.read_bytes()
    last = [position for position, _ in iter_batches(data)][-1]
    path.write_bytes(data[:last])
    world.open(clean=False)
    assert "00000000000000000008.snapshot" not in world.names()
    assert world.append("value-7", producer_id=7, producer_epoch=0, base_sequence=7).base_offset == 7


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_recovery_repairs_the_snapshots_at_segment_starts(tmp_path: Path, damage: str) -> None:
    """Retention and compaction remove what they summarise: without them, the producers would be forgotten."""
    world = filled(tmp_path)
    paths = [Path(world.directory) / name for name in world.names(".snapshot")]
    assert len(paths) > 1
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink() if damage == "missing" else path.write_bytes(b"garbage")
    world.crash(recovery_point=0)
    assert [path.read_bytes() for path in paths] == before


def test_recovery_on_a_full_disk_serves_what_is_stored(tmp_path: Path) -> None:
    """Indexes and snapshots cannot be written; they are in memory, or not needed yet."""
    disk = FailingDisk()
    world = LogWorld(tmp_path, disk=disk, **SMALL)
    for number in range(30):
        world.produce(7, f"value-{number}")
    for name in world.names(".snapshot"):
        (Path(world.directory) / name).unlink()
    disk.fails("append")
    world.crash(recovery_point=0)
    assert world.values() == expected()
    disk.works()
    world.log.flush()
    assert world.produce(7, "more").base_offset == 30


def test_files_without_a_segment_are_removed(tmp_path: Path) -> None:
    world = filled(tmp_path, 5)
    world.log.close()
    strays = ["00000000000000000099.index", "00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp"]
    for name in strays:
        (Path(world.directory) / name).write_bytes(b"stray")
    (Path(world.directory) / "notes.txt").write_bytes(b"somebody else's")
    world.open(recovery_point=5)
    assert world.values() == expected(5)
    assert not set(strays) & set(world.names())
    assert "notes.txt" in world.names()


def test_an_unreadable_log_raises_an_error(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = LogWorld(tmp_path, disk=disk, **SMALL)
    world.append("a")
    world.log.store.close()
    disk.fails("pread", 5)
    with pytest.raises(OSError, match="pread"):
        world.open(clean=False)
