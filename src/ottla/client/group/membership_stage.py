"""Where a member of a group is on its way, and where it may go from there. Pure."""

import enum


class Stage(enum.Enum):
    """Where a member is on its way."""

    OUT = "out"
    LOST = "lost"
    PREPARING = "preparing"
    JOINING = "joining"
    SYNCING = "syncing"
    ASSIGNED = "assigned"
    STABLE = "stable"
    FENCED = "fenced"


ALLOWED: dict[Stage, set[Stage]] = {
    Stage.OUT: {Stage.PREPARING},
    Stage.PREPARING: {Stage.JOINING, Stage.LOST, Stage.FENCED},
    Stage.JOINING: {Stage.SYNCING, Stage.LOST, Stage.FENCED},
    Stage.SYNCING: {Stage.ASSIGNED, Stage.JOINING, Stage.PREPARING, Stage.LOST, Stage.FENCED},
    Stage.ASSIGNED: {Stage.STABLE, Stage.PREPARING, Stage.LOST, Stage.FENCED},
    Stage.STABLE: {Stage.PREPARING, Stage.LOST, Stage.FENCED},
    Stage.LOST: {Stage.JOINING},
    Stage.FENCED: set(),  # somebody else lives under our group.instance.id: there is no way back
}
"""Any stage may also go OUT, when the user unsubscribes or closes."""

FOR_THE_USER = frozenset({Stage.LOST, Stage.PREPARING, Stage.ASSIGNED, Stage.FENCED})
"""Stages that only a poll() of the user leads out of."""
