"""The states of a compaction and every transition between them. Pure."""

import enum
from functools import partial

from ottla.checks import moved


class CompactionState(enum.Enum):
    """The state of a compaction plan."""

    PLANNED = enum.auto()
    RUNNING = enum.auto()
    """A thread reads segments and writes compacted ones."""
    FINISHED = enum.auto()
    """The compacted segments are complete and on stable storage. The owner of the log has not swapped them in yet."""
    APPLIED = enum.auto()
    DISCARDED = enum.auto()
    """It finished, but the log had changed in the meantime."""
    CANCELLED = enum.auto()
    """It stopped early on request. Its files are removed, as after a failure."""
    FAILED = enum.auto()
    """Only the compaction failed; the log is unchanged."""
    SYNC_FAILED = enum.auto()
    """The log itself could not be synced: records that were accepted may be lost, as after a failed flush."""


TRANSITIONS: dict[CompactionState, frozenset[CompactionState]] = {
    CompactionState.PLANNED: frozenset({CompactionState.RUNNING}),
    CompactionState.RUNNING: frozenset(
        {
            CompactionState.FINISHED,
            CompactionState.CANCELLED,
            CompactionState.FAILED,
            CompactionState.SYNC_FAILED,
        }
    ),
    CompactionState.FINISHED: frozenset({CompactionState.APPLIED, CompactionState.DISCARDED}),
    CompactionState.APPLIED: frozenset(),
    CompactionState.DISCARDED: frozenset(),
    CompactionState.CANCELLED: frozenset(),
    CompactionState.FAILED: frozenset(),
    CompactionState.SYNC_FAILED: frozenset(),
}

move = partial(moved, TRANSITIONS, "a compaction")
