"""Compaction, retention and DeleteRecords under transactions, kills and power loss: readers agree with a model.

Spec: D3, E6, R6, R7.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ottla.errors import KafkaError
from ottla.log.cleaning import compaction, compactor
from ottla.log.cleaning.compaction import BatchCleaner, TransactionTracker
from ottla.log.partition_log import PartitionLog
from ottla.log.producers.snapshot_files import SnapshotFiles
from ottla.protocol.records import batch_rewriting
from ottla.testing.sim_disk import SimDisk
from tests.support.seeds import each_seed
from tests.support.worlds.cleaning_world import CleaningWorld

STEPS = 80


def run(seed: int) -> CleaningWorld:
    try:
        world = CleaningWorld(seed)
        world.run(STEPS)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return world


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run(seed)


@each_seed(1, long=3000)
def test_readers_get_what_the_model_says(seed: int) -> None:
    """No aborted, deleted or compacted record appears, no last value is missing, slow readers miss no tombstone, a
    fresh load equals the live log, and retries are recognised."""
    run(seed)


def test_the_simulation_compacts_dies_and_deletes() -> None:
    """What the seeds do, so that the test above cannot become empty unnoticed."""
    worlds = [run(seed) for seed in range(6)]
    assert sum(world.passes for world in worlds) >= 8
    assert sum(world.deaths for world in worlds) >= 8
    assert sum(world.model.deleted_to > 0 for world in worlds) >= 2


# --- one rule disabled at a time --------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def aborts_never_end(patch: Patch) -> None:
    """A transaction that was aborted before the part that is read counts as aborted until its marker is read."""

    def is_aborting(self: TransactionTracker, header: Any) -> bool:
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            entry = self._waiting.pop()
            self._aborting.setdefault(entry.producer_id, entry)
        return header.producer_id in self._aborting

    patch.setattr(TransactionTracker, "_is_aborting", is_aborting)


def aborts_are_unknown(patch: Patch) -> None:
    """Aborted records replace committed ones."""
    patch.setattr(TransactionTracker, "is_aborted", lambda *_: False)


def tombstones_are_removed_immediately(patch: Patch) -> None:
    begin = BatchCleaner.__init__

    def without_retention(self: BatchCleaner, *args: Any, **options: Any) -> None:
        begin(self, *args, **options | {"delete_retention_ms": -1})

    patch.setattr(BatchCleaner, "__init__", without_retention)


def tombstones_have_no_horizon(patch: Patch) -> None:
    """Tombstones are never removed."""

    def without_horizon(*args: Any, **options: Any) -> bytes:
        return batch_rewriting.rewrite(*args, **options | {"delete_horizon_ms": None})

    patch.setattr(compaction, "rewrite", without_horizon)


def last_batches_are_not_kept(patch: Patch) -> None:
    patch.setattr(BatchCleaner, "_emptied", lambda *_: None)


def open_transactions_are_compacted(patch: Patch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


def all_markers_are_idle(patch: Patch) -> None:
    """A transaction's marker is removed before its records."""

    def is_idle_marker(self: TransactionTracker, header: Any, batch: Any) -> bool:
        original(self, header, batch)
        return True

    original = TransactionTracker.is_idle_marker
    patch.setattr(TransactionTracker, "is_idle_marker", is_idle_marker)


def retention_secures_no_snapshot(patch: Patch) -> None:
    patch.setattr(SnapshotFiles, "ensure_synced", lambda *_: None)


def cleaned_segments_are_not_synced(patch: Patch) -> None:
    patch.setattr(SimDisk, "sync_file", lambda *_: None)


def segments_may_end_early(patch: Patch) -> None:
    """A compacted segment ends before the next one begins, as if it had lost its end."""
    patch.setattr(compactor, "rewrite", lambda *_, **__: None)
    write = compactor.CompactionPlan.__dict__["_write"].__func__
    patch.setattr(
        compactor.CompactionPlan, "_write", staticmethod(lambda target, batch: batch and write(target, batch))
    )


def compaction_does_not_sync_the_log(patch: Patch) -> None:
    patch.setattr(compactor.CompactionPlan, "_sync_log", lambda _: None)


RULES: dict[Callable[[Patch], None], int] = {
    aborts_never_end: 31,
    aborts_are_unknown: 0,
    tombstones_are_removed_immediately: 47,
    tombstones_have_no_horizon: 1,
    last_batches_are_not_kept: 3,
    open_transactions_are_compacted: 0,
    all_markers_are_idle: 33,
    retention_secures_no_snapshot: 454,
    cleaned_segments_are_not_synced: 4,
    compaction_does_not_sync_the_log: 34,
    segments_may_end_early: 0,
}
"""Each with a seed that needs it. After changes that affect the random steps, one of the next seeds may."""


@pytest.mark.parametrize(("disable", "seed"), RULES.items(), ids=[rule.__name__ for rule in RULES])
def test_the_check_finds_a_disabled_rule(disable: Callable[[Patch], None], seed: int, monkeypatch: Patch) -> None:
    """Spec: R7."""
    disable(monkeypatch)
    with pytest.raises((AssertionError, KafkaError, pytest.fail.Exception)):
        run_all(range(seed, seed + 100))
