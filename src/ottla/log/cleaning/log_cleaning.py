"""Retention and compaction of one log: decides with `retention.py` and `compaction.py`, then changes the log."""

from ottla.log.cleaning.compaction import choose_cleanable
from ottla.log.cleaning.compaction_state import CompactionState
from ottla.log.cleaning.compactor import CompactionPlan
from ottla.log.cleaning.retention import segments_to_delete
from ottla.log.partition_log import PartitionLog
from ottla.log.producers.producer_state import ProducerStateManager


def enforce_retention(log: PartitionLog, now: int) -> int:
    """Deletes segments by retention.ms, retention.bytes and log start offset. Returns how many."""
    try:
        log.segments.purge(log.monotonic())
        facts = log.segments.retention_facts(log.log_end_offset, log.opened_ms)
        count = segments_to_delete(
            facts,
            log.config,
            now=now,
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
        )
        if count == len(facts):
            log.roll()
        if count:
            first = facts[count - 1].next_offset
            log.snapshots.ensure_synced(first, log.monotonic(), lambda offset: _producers_at(log, offset))
            # The start moves first: if a file cannot be deleted, its records are still unreachable.
            log.move_start(first)
            log.store.remove_oldest(count)
            log.snapshots.prune(log.segments.bases)
    except OSError as error:
        raise log.store.error("cannot delete old segments", error) from error
    return count


def plan_compaction(log: PartitionLog, now: int, held_ms: int = 0) -> CompactionPlan | None:
    """What to compact, or None if the settings do not require compaction now.

    If the clock has jumped forward by `held_ms`, `now` is the time without the jump.
    """
    if not log.config.compacts or log.store.has_failed:
        return None
    try:
        chosen = choose_cleanable(
            log.segments.cleanable_facts(), log.config, log.first_dirty_offset, log.last_stable_offset, now
        )
        if chosen is None:
            return None
        return CompactionPlan(
            log.topic_partition,
            log.directory,
            log.config,
            disk=log.disk,
            now=now,
            held_ms=held_ms,
            log_start_offset=log.log_start_offset,
            first_dirty_offset=chosen.first_dirty_offset,
            end_offset=chosen.end_offset,
            sources=[segment for segment in log.segments if segment.base_offset < chosen.end_offset],
            aborted=log.aborted_transactions(log.segments[0].base_offset, chosen.end_offset),
            producers=log.producers.entries(),
            unsynced=[segment.path(".log") for segment in log.segments if segment.unsynced],
        )
    except OSError as error:
        raise log.store.error("cannot plan compaction", error) from error


def compaction_failed(log: PartitionLog, plan: CompactionPlan) -> bool:
    """The plan's `run` raised. Returns whether writes are rejected from now on, because a sync failed."""
    if plan.has_failed_sync:
        log.store.fail()
    return plan.has_failed_sync


def apply_compaction(log: PartitionLog, plan: CompactionPlan) -> bool:
    """Replaces the plan's source segments by the compacted ones.

    Returns False if the compaction was cancelled or the log changed in the meantime.
    """
    if plan.state is not CompactionState.FINISHED:
        return False
    if not plan.still_fits(log.segments):
        plan.discard()
        return False
    try:
        for group in plan.cleaned:
            log.store.swap(group.sources, group.replacement(log.store.files))
        log.snapshots.prune(log.segments.bases)
        cleaned = [group.cleaned.base_offset for group in plan.cleaned]
        log.snapshots.end_transactions(cleaned, log.monotonic())
    except OSError as error:
        raise log.store.error("cannot swap in compacted segments", error) from error
    log.first_dirty_offset = max(log.first_dirty_offset, plan.cleaned_up_to)
    plan.applied()
    return True


def _producers_at(log: PartitionLog, offset: int) -> ProducerStateManager:
    return log.loader().load_producers(list(log.segments), offset)
