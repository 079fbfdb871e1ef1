"""The states of a broker's membership in the cluster, as `MetadataFollower` has them. Pure."""

import enum
from functools import partial

from ottla.checks import moved


class FollowerState(enum.Enum):
    """What the broker may change in the metadata, besides what clients request.

    Independent of the session with the store: a MEMBER whose session has expired registers again.
    """

    NEW = enum.auto()
    """It has not joined the cluster yet."""
    MEMBER = enum.auto()
    """It is registered, and acts as controller if it is elected."""
    LEAVING = enum.auto()
    """It hands over leadership and still serves. It has no duties as controller, and if its session expires, the others
    have replaced it: it does not register again."""
    FROZEN = enum.auto()
    """It changes no leader and no in-sync set. It stops, with or without having handed over."""


TRANSITIONS: dict[FollowerState, frozenset[FollowerState]] = {
    # Straight to FROZEN if it stops before it has joined.
    FollowerState.NEW: frozenset({FollowerState.MEMBER, FollowerState.FROZEN}),
    FollowerState.MEMBER: frozenset({FollowerState.LEAVING, FollowerState.FROZEN}),
    FollowerState.LEAVING: frozenset({FollowerState.FROZEN}),
    FollowerState.FROZEN: frozenset(),
}

move = partial(moved, TRANSITIONS, "a metadata follower")
