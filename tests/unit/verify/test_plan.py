"""The plan of faults and the summary of a run."""

import itertools

import pytest

from ottla.errors import OttlaError
from ottla.verify.cluster.local import parse_cluster
from ottla.verify.cluster.plan import FAULTS, FROM_CLIENTS, FROM_STORE, PARTITION, Injection, episodes, parse_faults
from ottla.verify.history import FAIL, OK, SEND, UNKNOWN, Fault, History, Operation
from ottla.verify.summary import by_fault, by_kind
from ottla.verify.workloads import Options


def first(count: int, seed: int = 1, brokers: int = 3, **options: bool) -> list[Injection]:
    chosen = itertools.islice(episodes(seed, FAULTS, brokers, **options), count)
    return [injection for episode in chosen for injection in episode.injections]


def test_the_plan_depends_on_the_seed_alone() -> None:
    assert first(50) == first(50)
    assert first(50) != first(50, seed=2)


def test_every_fault_strikes_every_broker() -> None:
    assert {(each.kind, each.broker) for each in first(300)} == set(itertools.product(FAULTS, range(3)))


def test_a_broker_is_cut_off_from_the_store_only_if_that_is_reached_over_the_network() -> None:
    sides = {each.cut_off_from for each in first(300) if each.kind == PARTITION}
    assert FROM_STORE not in sides
    assert FROM_STORE in {each.cut_off_from for each in first(300, has_remote_store=True)}


def test_a_single_broker_can_only_be_cut_off_from_clients() -> None:
    assert {each.cut_off_from for each in first(100, brokers=1) if each.kind == PARTITION} == {FROM_CLIENTS}


def test_two_faults_of_one_episode_strike_different_brokers() -> None:
    for episode in itertools.islice(episodes(1, FAULTS, 3), 200):
        brokers = [injection.broker for injection in episode.injections]
        assert len(brokers) == len(set(brokers))


@pytest.mark.parametrize("text", ["local", "local:0", "local:10", "local:x", "local:²", "local:٣", "remote:3", ""])
def test_a_cluster_that_cannot_be_started_is_refused(text: str) -> None:
    with pytest.raises(OttlaError, match="is not a cluster"):
        parse_cluster(text)


def test_unknown_faults_and_workloads_are_refused() -> None:
    with pytest.raises(OttlaError, match="unknown fault 'flood'"):
        parse_faults("kill,flood")
    with pytest.raises(OttlaError, match="unknown workload 'chess'"):
        Options(workloads=("chess",))


def test_operations_are_counted_by_kind_and_by_the_faults_during_which_they_began() -> None:
    def at(time: int, outcome: str) -> Operation:
        return Operation("s", SEND, outcome=outcome, started_us=time)

    operations = [at(1, OK), at(5, UNKNOWN), at(6, OK), at(9, FAIL), at(21, OK)]
    faults = [Fault("kill", (0,), 5, 7), Fault("pause", (1,), 5, 7), Fault("clock", (2,), 20, -1)]
    history = History(operations, faults)
    assert [(row.name, row.ok, row.fail, row.unknown) for row in by_kind(history)] == [("send", 3, 1, 1)]
    assert [(row.name, row.ok, row.fail, row.unknown) for row in by_fault(history)] == [
        ("no fault", 1, 1, 0),
        ("clock", 1, 0, 0),
        ("kill + pause", 1, 0, 1),
    ]
