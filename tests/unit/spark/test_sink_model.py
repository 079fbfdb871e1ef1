"""The exactly-once protocol over thousands of histories, with the sink's rules, and with rules disabled.

Spec: R7, R9.
"""

import contextlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ottla.spark.sink import decisions
from tests.support.seeds import seeds
from tests.support.worlds.sink_model import Rules, World, digest_of

if TYPE_CHECKING:
    from ottla.spark.sink.decisions import Digest

EVERYTHING = [(batch, task) for batch in range(World.BATCHES) for task in range(World.TASKS)]


def written(world: World) -> Counter[tuple[int, int]]:
    return Counter((batch, task) for batch, task, _ in world.broker.output)


def failures(tried: range, **options: Any) -> list[int]:
    """The seeds after which rows are missing or duplicated."""
    wrong = []
    for seed in tried:
        world = World(seed, **options)
        try:
            world.play()
        except AssertionError:
            wrong.append(seed)
            continue
        if not world.lost_for_good() and written(world) != Counter(EVERYTHING):
            wrong.append(seed)
    return wrong


@pytest.mark.seeded
def test_every_row_is_written_exactly_once_after_any_crash() -> None:
    """Spec: F2, D1, E9. Task crashes, zombies, driver crashes, second drivers, timeouts, commits called twice."""
    assert not failures(seeds(2000, fast=300))


def test_the_histories_include_the_rare_events() -> None:
    """The model would prove little if rare events never happened in it."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        world = World(seed)
        world.play()
        seen["runs"] += world.runs
        seen["refused"] += world.owners_refused
        seen["lost"] += len(world.lost)
        seen["attempts"] += world.attempts
        seen["replayed"] += bool(world.broker.state.decision and len(world.broker.state.decision.runs) > 1)
    assert seen["runs"] > 600
    assert seen["attempts"] > 4000
    assert seen["refused"] > 10
    assert seen["lost"] > 10
    assert seen["replayed"] > 100


@pytest.mark.seeded
def test_a_nondeterministic_query_is_written_as_it_was_decided() -> None:
    """With two-phase commit nothing times out: after a crash, exactly the rows decided first are written."""
    for seed in seeds(2000, fast=300):
        world = World(seed, is_deterministic=False, times_out=False, has_zombies=False)
        world.play()
        assert not world.lost, seed
        assert as_decided(world), seed


def as_decided(world: World) -> bool:
    found: dict[int, set[Digest]] = {}
    for row in world.broker.output:
        found.setdefault(row[0], set()).add(digest_of(row))
    return written(world) == Counter(EVERYTHING) and found == world.decided


@pytest.mark.seeded
def test_with_timeouts_a_nondeterministic_query_stops_rather_than_mix_two_attempts() -> None:
    stopped = 0
    for seed in seeds(1000, fast=300):
        world = World(seed, is_deterministic=False)
        world.play()
        stopped += world.lost_for_good()
        assert all(count == 1 for count in written(world).values()), seed
        if not world.lost:
            assert written(world) == Counter(EVERYTHING), seed
    assert stopped


@pytest.mark.seeded
def test_a_query_stopped_for_longer_than_the_brokers_remember_writes_nothing_twice() -> None:
    """If a driver died between two commits, it is unknown which parts were committed: the query stops."""
    stopped = 0
    for seed in seeds(2000, fast=300):
        world = World(seed, stands_still=True, has_zombies=False)
        world.play()
        stopped += world.lost_for_good()
        assert all(count == 1 for count in written(world).values()), seed
        assert world.lost_for_good() or written(world) == Counter(EVERYTHING), seed
    assert 0 < stopped < len(seeds(2000, fast=300))


def wrong_inside_foreach_batch(rules: Rules) -> list[int]:
    """The seeds after which a decided batch is missing or changed, or a batch without a decision is visible."""
    wrong = []
    for seed in range(1000):
        world = World(seed, goes_on=True, times_out=False, has_zombies=False, rules=rules)
        with contextlib.suppress(AssertionError):  # a query that cannot continue has lost something
            world.play()
        expected = Counter((batch, task) for batch in world.decided for task in range(World.TASKS))
        if world.lost or written(world) != expected:
            wrong.append(seed)
    return wrong


def test_inside_foreach_batch_a_function_that_ignores_a_failure_loses_nothing_that_was_decided() -> None:
    assert not wrong_inside_foreach_batch(Rules())


# --- rules disabled: the model must notice ---------------------------------------------------------------------


def blind_commit(state: Any, ledger: Any, *rest: Any, **more: Any) -> Any:
    return decisions.decide_commit(replace(state, done=None), {}, *rest, **more)


def no_memory(state: Any, ledger: Any, *rest: Any, **more: Any) -> Any:
    return decisions.decide_commit(decisions.SinkState(), {}, *rest, **more)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(decide_write=lambda *_, **__: decisions.Write(), decide_commit=no_memory),
        Rules(decide_write=lambda *_, **__: decisions.Write(), decide_commit=blind_commit),
    ],
    ids=["no ledger and no decision", "no ledger"],
)
def test_without_the_ledger_rows_are_duplicated(rules: Rules) -> None:
    """Spec: R7."""
    assert failures(range(200), rules=rules)


def test_a_task_that_does_not_read_the_decision_first_breaks_it() -> None:
    """Spec: R7. InitProducerId aborts the decided part, and other rows replace it."""
    rules = Rules(may_be_decided=lambda first, batch: False)
    wrong = 0
    for seed in range(200):
        world = World(seed, is_deterministic=False, times_out=False, has_zombies=False, rules=rules)
        world.play()
        wrong += bool(world.lost) or not as_decided(world)
    assert wrong


def test_a_task_that_ignores_the_previous_batch_drops_its_decided_parts() -> None:
    """Spec: R7."""

    def forgetful(*arguments: Any, **more: Any) -> Any:
        verdict = decisions.decide_write(*arguments, **more)
        return decisions.Write() if isinstance(verdict, decisions.FinishEarlier) else verdict

    assert wrong_inside_foreach_batch(Rules(decide_write=forgetful))


def test_a_task_that_treats_forgotten_parts_as_lost_duplicates_them() -> None:
    """Spec: R7."""

    def hasty(*arguments: Any, is_known: bool) -> bool:
        return decisions.is_lost(*arguments, is_known=True)

    worlds = [World(seed, stands_still=True, has_zombies=False, rules=Rules(is_lost=hasty)) for seed in range(200)]
    for world in worlds:
        world.play()
    assert any(count > 1 for world in worlds for count in written(world).values())


def test_without_a_stored_decision_a_fenced_driver_is_not_detected() -> None:
    """Spec: R7."""
    refused = {True: 0, False: 0}
    for first in (True, False):
        for seed in range(300):
            world = World(seed, rules=Rules(writes_decision_first=first))
            world.play()
            refused[first] += world.owners_refused
    assert refused[True] > 10 * refused[False]
