"""The aborted transactions on disk always match the log: after truncation, power loss and interrupted deletion.

An entry too many hides committed records, a missing one shows aborted records. Spec: E8, R6.
"""

from pathlib import Path

import pytest

from ottla.errors import KafkaError
from ottla.log.cleaning.log_cleaning import enforce_retention
from ottla.log.disk import Disk
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.testing.sim_disk import SimDisk, SimPlatter
from ottla.testing.sim_loop import SimLoop
from tests.support.worlds.log_world import LogWorld


def aborted_and_flushed(directory: Path, disk: Disk | None = None) -> LogWorld:
    """Offset 0 is a record, offset 1 the marker that aborts it. Both are on stable storage."""
    world = LogWorld(directory, disk=disk, retention_ms=1000, file_delete_delay_ms=0)
    world.produce(7, "a", transactional=True, commit=False)
    world.ends(7, abort=True, commit=False)
    world.log.flush()
    assert world.log.aborted_transactions(0, 2) == [AbortedTransaction(7, 0, 1, 2)]
    return world


def lose_power(world: LogWorld, recovery_point: int) -> None:
    assert isinstance(world.disk, SimDisk)
    platter = world.disk.platter
    world.disk.detach()
    platter.power_loss()
    world.disk = platter.disk()
    world.open(clean=False, recovery_point=recovery_point)


def test_a_truncated_marker_aborts_nothing_after_a_clean_restart(tmp_path: Path) -> None:
    """A follower truncates an ABORT marker that its leader does not have, and receives a COMMIT marker instead."""
    world = aborted_and_flushed(tmp_path)
    world.log.truncate_to(1)
    world.restart()
    assert world.log.aborted_transactions(0, 1) == []
    world.ends(7, abort=False)
    assert world.log.aborted_transactions(0, 2) == []


def test_a_marker_that_a_crash_took_aborts_nothing_after_a_clean_restart(tmp_path: Path) -> None:
    """The power loss took all records of the segment, but not its transaction index."""
    world = aborted_and_flushed(tmp_path)
    Path(world.log.segments.active.path(".log")).write_bytes(b"")
    world.crash(recovery_point=0)
    assert world.log.log_end_offset == 0
    world.restart()
    world.sequences.clear()
    world.produce(7, "b", transactional=True)
    world.ends(7, abort=False)
    assert world.log.aborted_transactions(0, 2) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_truncated_marker_stays_truncated_after_a_power_loss(seed: int, is_finished: bool) -> None:
    """A flush syncs a transaction index without entries too: the entries that it had must not come back."""
    platter = SimPlatter(SimLoop(seed))
    world = aborted_and_flushed(Path("/data"), platter.disk())
    world.log.truncate_to(1)
    world.ends(7, abort=False)
    if is_finished:
        world.log.roll()
    world.append("b")
    world.log.flush()
    if not is_finished:
        world.log.roll()
    world.append("c")
    world.log.flush()
    lose_power(world, recovery_point=world.log.log_end_offset)
    assert world.log.aborted_transactions(0, 4) == []


def test_a_truncation_after_a_marker_does_not_commit_the_marker(tmp_path: Path) -> None:
    """The marker is not below the high watermark yet: the next truncation may take it, and with it the decision."""
    world = LogWorld(tmp_path)
    world.produce(7, "a", transactional=True)
    world.ends(7, abort=False, commit=False)
    world.log.roll()
    world.append("b", commit=False)
    assert world.log.last_stable_offset == 0
    world.log.truncate_to(2)
    assert world.log.last_stable_offset == 0
    world.log.advance_high_watermark(2)
    assert world.log.last_stable_offset == 2


class DyingDisk(Disk):
    """A disk whose process dies after some renames."""

    renames_left = -1

    def rename(self, old: str, new: str) -> None:
        if self.renames_left == 0:
            raise OSError("the process is dead")
        self.renames_left -= 1
        super().rename(old, new)


@pytest.mark.parametrize("renames", range(4))
def test_a_segment_of_an_interrupted_deletion_is_not_left_without_its_aborted_transactions(
    tmp_path: Path, renames: int
) -> None:
    """Either the segment is there with its indexes, or it is gone."""
    disk = DyingDisk()
    world = aborted_and_flushed(tmp_path, disk)
    world.log.roll()
    world.append("b")
    world.log.flush()
    assert len(world.names("0000.index") + world.names("0000.timeindex") + world.names("0000.txnindex")) == 3
    disk.renames_left = renames
    with pytest.raises(KafkaError):
        enforce_retention(world.log, world.now + 1001)
    disk.renames_left = -1
    world.log.store.close()
    world.open(clean=False, recovery_point=3)
    aborted = [AbortedTransaction(7, 0, 1, 2)]
    assert (world.log.log_start_offset, world.log.aborted_transactions(0, 3)) in [(0, aborted), (2, [])]
    assert not world.names(".deleted")
