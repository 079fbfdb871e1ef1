"""Partition assignors: range, round-robin, sticky, cooperative-sticky, and the interface for custom ones. Pure."""

from ottla.assignors.base import (
    Assignment,
    Assignor,
    ClusterMetadata,
    PartitionAssignor,
    PartitionInfo,
    Subscription,
)
from ottla.assignors.range import RangeAssignor
from ottla.assignors.round_robin import RoundRobinAssignor
from ottla.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

BUILT_IN: dict[str, type[Assignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""By the name that members of a group agree on. Custom assignors need other names."""

__all__ = [
    "BUILT_IN",
    "Assignment",
    "Assignor",
    "ClusterMetadata",
    "CooperativeStickyAssignor",
    "PartitionAssignor",
    "PartitionInfo",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Subscription",
]
