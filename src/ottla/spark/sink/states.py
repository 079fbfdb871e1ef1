"""The states of one batch in a sink, from the start of its tasks to the last commit. Pure.

A task moves its part of the batch up to the state it reports to the driver: EMPTY, STORED, SETTLED or PREPARED. The
driver starts from what all tasks reported (`combined`) and moves the whole batch on. A crash loses the state, not the
batch: the next run reads the decisions topic (or the database's ledger) and starts again at STARTED.
"""

import enum
from collections.abc import Iterable
from functools import partial

from ottla.checks import moved


class BatchState(enum.Enum):
    STARTED = "started"
    """Nothing is written yet."""
    WRITING = "writing"
    """The task has rows to write, and nothing of them is visible."""
    EMPTY = "empty"
    """There were no rows, so there is no part to commit."""
    STORED = "stored"
    """At-least-once and at-most-once: the rows are visible, and the driver has nothing to commit."""
    SETTLED = "settled"
    """An earlier run decided this batch. The task wrote nothing; the driver finishes what is still missing."""
    PREPARED = "prepared"
    """The rows are durable and invisible, and wait for the driver's decision."""
    DECIDED = "decided"
    """The decision is stored."""
    COMMITTED = "committed"
    """Every part of the batch is visible."""
    ABORTED = "aborted"
    """The rows that this run wrote for the batch are dropped."""


_S = BatchState

TRANSITIONS: dict[BatchState, set[BatchState]] = {
    _S.STARTED: {_S.EMPTY, _S.SETTLED, _S.WRITING, _S.COMMITTED, _S.ABORTED},  # COMMITTED: a frame without any task
    _S.WRITING: {_S.PREPARED, _S.STORED, _S.ABORTED},
    _S.PREPARED: {_S.DECIDED, _S.COMMITTED, _S.ABORTED},  # COMMITTED: a database decides and commits in one step
    _S.SETTLED: {_S.DECIDED, _S.COMMITTED, _S.ABORTED},  # ABORTED: of a batch whose decisions topic was deleted
    _S.DECIDED: {_S.COMMITTED},  # no way back: some parts may be visible already
    _S.EMPTY: {_S.COMMITTED, _S.ABORTED},  # COMMITTED: a database records the batch in its ledger
    _S.STORED: {_S.COMMITTED, _S.ABORTED},  # ABORTED: the rows stay visible
    _S.COMMITTED: set(),
    _S.ABORTED: set(),
}

move = partial(moved, TRANSITIONS, "a batch")

_STRONGEST_FIRST = (_S.PREPARED, _S.SETTLED, _S.STORED, _S.EMPTY, _S.STARTED)


def combined(states: Iterable[BatchState]) -> BatchState:
    """The state of a batch whose tasks reported these states; STARTED if no task reported one.

    >>> combined([BatchState.EMPTY, BatchState.PREPARED, BatchState.SETTLED]).value
    'prepared'
    """
    reported = set(states)
    assert reported <= set(_STRONGEST_FIRST), reported
    return next((state for state in _STRONGEST_FIRST if state in reported), _S.STARTED)
