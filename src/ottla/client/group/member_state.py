"""The states of a group member and the transitions between them. Pure."""

import enum


class MemberState(enum.Enum):
    """The state of this member in its group."""

    UNSUBSCRIBED = "unsubscribed"
    LOST = "lost"
    """Removed from the group without having given up its partitions; the listener has yet to be called."""
    PREPARING = "preparing"
    """About to (re)join: poll() commits and revokes first."""
    JOINING = "joining"
    SYNCING = "syncing"
    ASSIGNED = "assigned"
    """The assignment has arrived; poll() has yet to take it over."""
    STABLE = "stable"
    FENCED = "fenced"
    """Another consumer uses the same group.instance.id (KIP-345)."""


TRANSITIONS: dict[MemberState, set[MemberState]] = {
    MemberState.UNSUBSCRIBED: {MemberState.PREPARING},
    MemberState.PREPARING: {MemberState.JOINING, MemberState.LOST, MemberState.FENCED},
    MemberState.JOINING: {MemberState.SYNCING, MemberState.LOST, MemberState.FENCED},
    MemberState.SYNCING: {
        MemberState.ASSIGNED,
        MemberState.JOINING,
        MemberState.PREPARING,
        MemberState.LOST,
        MemberState.FENCED,
    },
    MemberState.ASSIGNED: {MemberState.STABLE, MemberState.PREPARING, MemberState.LOST, MemberState.FENCED},
    MemberState.STABLE: {MemberState.PREPARING, MemberState.LOST, MemberState.FENCED},
    MemberState.LOST: {MemberState.JOINING},
    MemberState.FENCED: set(),  # final: rejoining would fence the other consumer in turn
}
"""Transitions. In addition, every state may go to UNSUBSCRIBED when the user unsubscribes or closes."""

WAITING_FOR_POLL = frozenset({MemberState.LOST, MemberState.PREPARING, MemberState.ASSIGNED, MemberState.FENCED})
"""States that only a call of poll() leaves."""
