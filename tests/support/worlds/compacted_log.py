"""A log that is compacted as soon as there is anything to compact."""

from pathlib import Path
from typing import Any

from ottla.log.cleaning.log_cleaning import apply_compaction, plan_compaction
from tests.support.worlds.log_world import LogWorld

HOUR = 3_600_000
DAY = 24 * HOUR


def compacted(tmp_path: Path, **settings: Any) -> LogWorld:
    """A log that is compacted as soon as there is anything to compact."""
    defaults: dict[str, Any] = {
        "cleanup_policy": ("compact",),
        "min_cleanable_dirty_ratio": 0.0,
        "delete_retention_ms": DAY,
        "file_delete_delay_ms": 0,
    }
    return LogWorld(tmp_path, **(defaults | settings))


def roll(world: LogWorld) -> None:
    world.log.roll()


def compact_keys(world: LogWorld, max_keys: int) -> None:
    """One pass that has memory for so many keys, and may stop early."""
    plan = plan_compaction(world.log, world.now)
    assert plan is not None
    plan.max_keys = max_keys
    plan.run()
    assert apply_compaction(world.log, plan)
