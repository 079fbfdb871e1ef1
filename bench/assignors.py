"""The sticky assignor at a large scale: a million partitions and 2,000 members, assigned twice."""

import gc
import time
from typing import Any

from bench.results import Results

SUITE = "assignors"
GOAL_S = 30


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    """The second assignment starts from the first and must not move anything."""
    large_rounds = 1 if quick else min(rounds, 3)
    small_rounds = 3 * rounds
    step(total=large_rounds + small_rounds)
    for _ in range(large_rounds):
        step("1,000,000 partitions, 2,000 members")
        seconds = assign_twice(topics=500, partitions=2000, members=2000)
        label = f"sticky, 1,000,000 partitions, 2,000 members, twice (goal: {GOAL_S} s)"
        results.add(SUITE, label, "s", "ottla", seconds)
    for _ in range(small_rounds):
        step("10,000 partitions, 100 members")
        seconds = assign_twice(topics=100, partitions=100, members=100)
        results.add(SUITE, "sticky, 10,000 partitions, 100 members, twice", "ms", "ottla", seconds * 1000)


def assign_twice(topics: int, partitions: int, members: int) -> float:
    """Seconds a leader needs for the first assignment and for one that starts from it."""
    from ottla.assignors.base import ClusterMetadata
    from ottla.assignors.sticky import StickyAssignor

    cluster = ClusterMetadata.of({f"topic-{i}": partitions for i in range(topics)})
    names = [f"topic-{i}" for i in range(topics)]
    everyone = {f"member-{i}": StickyAssignor() for i in range(members)}
    leader = StickyAssignor()
    gc.collect()
    started = time.perf_counter()
    first = leader.assign(cluster, {member: each.subscription(names) for member, each in everyone.items()})
    seconds = time.perf_counter() - started
    for member, each in everyone.items():
        each.on_assignment(first[member], generation=1)
    subscriptions = {member: each.subscription(names) for member, each in everyone.items()}
    started = time.perf_counter()
    second = leader.assign(cluster, subscriptions)
    seconds += time.perf_counter() - started
    share = topics * partitions // members
    assert all(len(second[member].partitions) == share for member in everyone)
    assert all(set(second[member].partitions) == set(first[member].partitions) for member in everyone)
    return seconds
