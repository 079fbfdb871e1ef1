"""Compaction beside other work, and crashes while its result replaces the segments."""

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import KafkaError
from ottla.log.cleaning.compaction_state import CompactionState
from ottla.log.cleaning.compactor import CompactionPlan
from ottla.log.cleaning.log_cleaning import apply_compaction, compaction_failed, enforce_retention, plan_compaction
from ottla.log.disk import Disk
from ottla.protocol.records.record_batch import read_records
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from tests.support.worlds.compacted_log import DAY, HOUR, compacted, roll
from tests.support.worlds.log_world import NOON, FailingDisk, find_by_time


def test_the_log_is_written_and_read_while_it_is_compacted(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    world.append(("a", "3"))
    assert world.values() == ["1", "2", "3"]
    plan.run()
    world.append(("a", "4"))
    assert apply_compaction(world.log, plan)
    assert world.values() == ["2", "3", "4"]


def test_a_compaction_is_discarded_if_the_log_changed(tmp_path: Path) -> None:
    world = compacted(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=HOUR)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    world.append(("a", "3"), timestamp=NOON + HOUR)
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    plan.run()
    enforce_retention(world.log, NOON + HOUR + 1)
    assert not apply_compaction(world.log, plan)
    assert world.values() == ["3"]
    assert world.names(".cleaned") == []


def test_a_compaction_is_discarded_if_its_last_segment_is_written_again(tmp_path: Path) -> None:
    """A follower truncates the segments after it, and continues in a segment that was read as a finished one."""
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    world.append(("b", "1"), commit=False)
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    plan.run()
    world.log.truncate_to(2)
    world.append(("c", "1"))
    assert not apply_compaction(world.log, plan)
    assert world.values() == ["1", "2", "1"]


def test_a_cancelled_compaction_leaves_no_files(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    plan.cancel()
    plan.run()
    assert not apply_compaction(world.log, plan)
    assert world.names(".cleaned") == []
    assert world.values() == ["1", "2"]


def test_a_cancelled_compaction_does_not_claim_success(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.log")
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    cancelled = plan_compaction(world.log, world.now)
    assert cancelled is not None
    cancelled.cancel()
    cancelled.run()
    assert "compacted up to" not in caplog.text
    assert cancelled.cleaned_up_to == 0
    assert not apply_compaction(world.log, cancelled)
    assert world.compact()
    assert "orders-0: compacted up to offset 2" in caplog.text


class CancellingDisk(Disk):
    """Cancels a compaction when it has written and synced so many times, and counts syncs."""

    plan: CompactionPlan | None = None

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.syncs_too_late = 0

    def append(self, handle: int, buffers: Sequence[Any]) -> int:
        self._step()
        return super().append(handle, buffers)

    def sync_file(self, path: str) -> None:
        self.syncs_too_late += self._step()
        super().sync_file(path)

    def sync_directory(self, path: str) -> None:
        self.syncs_too_late += self._step()
        super().sync_directory(path)

    def _step(self) -> bool:
        """Returns whether the compaction was already cancelled."""
        if self.plan is None:
            return False
        self.steps -= 1
        if self.steps == 0:
            self.plan.cancel()
        return self.steps < 0


def test_a_compaction_that_is_cancelled_at_any_step_waits_for_no_further_sync(tmp_path: Path) -> None:
    for steps in range(1, 50):
        disk = CancellingDisk(steps)
        world = compacted(tmp_path / str(steps), disk=disk, segment_bytes=200)
        for number in range(4):
            world.append(("a", "1" * 90), (f"{number}", "1"))
            roll(world)
        world.append(("c", "1"))
        before = world.values()
        plan = disk.plan = plan_compaction(world.log, world.now)
        assert plan is not None
        plan.run()
        if disk.steps > 0:
            assert plan.state is CompactionState.FINISHED
            break
        disk.plan = None
        assert plan.state is CompactionState.CANCELLED
        assert disk.syncs_too_late == 0, steps
        assert world.names(".cleaned") == []
        assert not apply_compaction(world.log, plan)
        assert world.values() == before
    assert 10 < steps < 49


def test_a_plan_runs_once(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    plan.run()
    assert apply_compaction(world.log, plan)
    with pytest.raises(AssertionError, match="from APPLIED to RUNNING"):
        plan.run()
    assert world.values() == ["2"]


def test_corrupt_batches_are_not_copied(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.checks_reload = False
    world.append(("a", "1"), ("a", "2"))
    path = Path(world.log.segments.active.path(".log"))
    roll(world)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    with pytest.raises(KafkaError):
        plan.run()
    assert world.names(".cleaned") == []


def test_a_full_disk_stops_only_the_compaction(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = compacted(tmp_path, disk=disk)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    disk.fails("append")
    with pytest.raises(OSError, match="append fails in this test"):
        plan.run()
    assert not compaction_failed(world.log, plan)
    disk.works()
    assert world.names(".cleaned") == []
    assert world.append(("b", "1")).base_offset == 2
    assert world.compact()
    assert world.values() == ["2", "1"]


def test_a_segment_without_remaining_records_keeps_an_empty_last_batch(tmp_path: Path) -> None:
    """Recovery takes a segment that ends before the next one starts for a truncated one."""
    world = compacted(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=9 * DAY, segment_bytes=200)
    world.append(("a", "1" * 100))
    roll(world)
    world.append(("b", "1" * 100))
    roll(world)
    world.append(("a", "2"), ("b", "2"))
    roll(world)
    assert world.compact()
    for reopen in (world.restart, world.crash, lambda: world.crash(recovery_point=0)):
        assert [(h.base_offset, h.last_offset, h.record_count) for h, _ in world.read_batches()] == [
            (0, 0, 0),
            (1, 1, 0),
            (2, 3, 2),
        ]
        assert world.pairs() == [(2, "a", "2"), (3, "b", "2")]
        reopen()
    assert enforce_retention(world.log, world.now + 10 * DAY) >= 3
    assert world.pairs() == []


# --- crashes ----------------------------------------------------------------------------------------------


class DyingDisk(Disk):
    """Fails from the n-th rename or removal on, like a killed process."""

    def __init__(self) -> None:
        self.left: int | None = None

    def _live(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise OSError("the process is dead")
            self.left -= 1

    def rename(self, old: str, new: str) -> None:
        self._live()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._live()
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._live()
        super().sync_directory(path)


def test_a_crash_at_any_step_of_the_swap_leaves_a_complete_log(tmp_path: Path) -> None:
    """Either the old segments or the new ones: no lost key, no duplicate offset, no corrupt index."""
    finished = False
    for steps in range(100):
        disk = DyingDisk()
        world = compacted(tmp_path / str(steps), disk=disk, segment_bytes=900, index_interval_bytes=50)
        for number in range(30):
            world.append((f"key-{number % 3}", f"value-{number}"))
            if number % 5 == 4:
                roll(world)
            if number == 19:
                world.produce(7, ("t", "bad"), transactional=True)
                world.ends(7, abort=True)
        plan = plan_compaction(world.log, world.now)
        assert plan is not None
        plan.run()
        disk.left = steps
        try:
            apply_compaction(world.log, plan)
            finished = True
        except KafkaError:
            pass
        disk.left = None
        end = world.log.log_end_offset
        world.crash(recovery_point=end)
        pairs = world.pairs()
        assert {key: value for _, key, value in pairs if key != "t"} == {
            f"key-{n % 3}": f"value-{n}" for n in range(27, 30)
        }
        assert [offset for offset, *_ in pairs] == sorted({offset for offset, *_ in pairs})
        assert world.log.log_end_offset == end
        bad = [record for record in pairs if record[1] == "t"]
        assert not bad or world.log.aborted_transactions(0, end) != []
        assert not [name for name in world.names() if name.endswith((".swap", ".cleaned", ".deleted"))]
        for offset in range(end):
            world.log.read(offset, 100, upper_bound=end)
        assert world.append(("key-0", "again")).base_offset == end
        if finished:
            break
    assert finished
    assert steps > 20


@pytest.mark.parametrize("seed", range(5))
def test_batches_that_a_pass_relied_on_survive_a_power_loss(seed: int) -> None:
    """The marker that aborts, and the later batch of a producer, are synced before the earlier batches are removed."""
    platter = SimPlatter(SimLoop(seed))
    disk = platter.disk()
    world = compacted(Path("/data"), disk=disk)
    world.produce(7, ("a", "1"))
    world.produce(8, ("b", "bad"), transactional=True)
    world.append(("a", "2"))
    roll(world)
    world.produce(7, ("c", "1"))
    world.ends(8, abort=True, epoch=1)
    assert world.compact()
    assert world.pairs() == [(2, "a", "2"), (3, "c", "1")]
    disk.detach()
    platter.power_loss()
    world.disk = platter.disk()
    world.open(clean=False)
    assert world.log.log_end_offset == 5
    world.commit()
    assert world.log.last_stable_offset == 5
    assert world.append(("c", "1"), producer_id=7, producer_epoch=0, base_sequence=1).duplicate
    with pytest.raises(KafkaError, match="epoch 0 is older than 1"):
        world.append(("z", "1"), producer_id=8, producer_epoch=0, base_sequence=1, transactional=True)


def test_retries_are_recognised_after_a_pass_and_a_truncation(tmp_path: Path) -> None:
    """The last batch of a producer may be one that the next leader does not have. The one before it is kept too."""
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"))
    world.ends(8, abort=False, epoch=5)
    world.append(("a", "2"))
    roll(world)
    world.produce(7, ("b", "1"), commit=False)
    world.ends(8, abort=False, epoch=6, commit=False)
    assert world.compact()
    assert world.pairs() == [(2, "a", "2"), (3, "b", "1")]
    world.log.truncate_to(3)
    world.crash(recovery_point=0)
    assert world.append(("a", "1"), producer_id=7, producer_epoch=0, base_sequence=0).duplicate
    with pytest.raises(KafkaError, match="epoch 4 is older than 5"):
        world.append(("z", "1"), producer_id=8, producer_epoch=4, base_sequence=0, transactional=True)


def test_a_failed_sync_in_a_compaction_ends_all_writes(tmp_path: Path) -> None:
    """As after a failed flush: the kernel may have dropped records that were accepted."""
    disk = FailingDisk()
    world = compacted(tmp_path, disk=disk)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    world.append(("b", "1"))
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    disk.fails("sync_directory", errno.EIO)
    with pytest.raises(OSError, match="sync_directory fails"):
        plan.run()
    disk.works()
    assert compaction_failed(world.log, plan)
    assert world.names(".cleaned") == []
    with pytest.raises(KafkaError, match="restart the broker"):
        world.append(("b", "2"))
    assert world.values() == ["1", "2", "1"], "reads continue"


def test_incomplete_cleaned_files_are_removed_at_the_next_start(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    plan.run()
    assert world.names(".log.cleaned")
    world.crash()
    assert world.names(".cleaned") == []
    assert world.values() == ["1", "2"]


def test_the_first_dirty_offset_survives_a_restart(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    world.append(("b", "1"))
    assert world.compact()
    world.restart()
    assert world.log.first_dirty_offset == 2
    assert not world.compact()


def test_timestamps_are_found_after_compaction(tmp_path: Path) -> None:
    world = compacted(tmp_path, segment_bytes=400, index_interval_bytes=50)
    for number in range(30):
        world.append((f"key-{number % 7}", "v"), timestamp=NOON + number * 10)
    world.compact()
    kept = world.records()
    for time in range(-5, 305, 5):
        expected = next((record.offset for record in kept if record.timestamp >= NOON + time), None)
        found = find_by_time(world.log, NOON + time, upper_bound=30)
        assert (found.offset if found else None) == expected


def test_a_follower_can_copy_a_compacted_log(tmp_path: Path) -> None:
    world = compacted(tmp_path / "leader", segment_bytes=400)
    for number in range(30):
        world.produce(7, (f"key-{number % 3}", f"value-{number}"))
    assert world.compact()
    follower = compacted(tmp_path / "follower", segment_bytes=400)
    end = world.log.log_end_offset
    while follower.log.log_end_offset < end:
        data = world.log.read(follower.log.log_end_offset, 500, upper_bound=end)
        follower.log.append_replicated(data)
    assert follower.pairs() == world.pairs()
    assert all(read_records(batch) is not None for _, batch in follower.read_batches())
