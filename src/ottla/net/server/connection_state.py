"""The states of a server connection and every transition between them. Pure.

The connection has one state and changes it only through `move`. Everything that depends on the life cycle of
a connection checks the state, so a new rule is a new row here.
"""

import enum
from functools import partial

from ottla.checks import moved


class State(enum.IntEnum):
    """Ordered by time: once a connection is ENDING, it never returns to an earlier state."""

    READING = 0
    """Requests are read and handled."""
    HELD = 1
    """No further request is handled: the peer does not read its responses, or too many of them are pending."""
    ENDING = 2
    """No further request is accepted. The responses still owed are written, then the connection closes."""
    CLOSING = 3
    """Nothing more is written. The transport delivers what it has buffered."""
    CLOSED = 4
    """The transport is gone."""


READING, HELD, ENDING, CLOSING, CLOSED = State
"""Module-level names: reading an enum's member through its class costs twice as much on every frame."""

TRANSITIONS: dict[State, frozenset[State]] = {
    # Straight to CLOSING when no response is owed; straight to CLOSED when the peer resets the connection.
    READING: frozenset({HELD, ENDING, CLOSING, CLOSED}),
    HELD: frozenset({READING, ENDING, CLOSING, CLOSED}),
    # Not to HELD: a peer that stops reading now delays its last responses (FlowControl waits for it), but there
    # are no requests left to hold back, and leaving ENDING would let new ones in.
    ENDING: frozenset({CLOSING, CLOSED}),
    CLOSING: frozenset({CLOSED}),
    CLOSED: frozenset(),
}

move = partial(moved, TRANSITIONS, "a server connection")
