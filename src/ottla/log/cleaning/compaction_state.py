"""The states of a compaction and every transition between them. Pure."""

import enum


class CompactionState(enum.Enum):
    """What has become of a compaction plan."""

    PLANNED = enum.auto()
    RUNNING = enum.auto()
    """A thread reads segments and writes compacted ones."""
    FINISHED = enum.auto()
    """The compacted segments are complete and on stable storage. The owner of the log has not swapped them in yet."""
    APPLIED = enum.auto()
    DISCARDED = enum.auto()
    """It finished, but the log had changed in the meantime."""
    CANCELLED = enum.auto()
    """It stopped early on request. Its files are removed, and so they are after a failure."""
    FAILED = enum.auto()
    """Only the compaction failed; the log is as good as before."""
    SYNC_FAILED = enum.auto()
    """The log itself could not be synced: records that were accepted may be lost, as after a failed flush."""


ALLOWED: dict[CompactionState, frozenset[CompactionState]] = {
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


def move(current: CompactionState, new: CompactionState) -> CompactionState:
    """Returns `new` if the table allows it. Anything else is a bug in the caller."""
    assert new in ALLOWED[current], f"a compaction cannot move from {current.name} to {new.name}"
    return new
