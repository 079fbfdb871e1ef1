"""`ottla group plan`: a dry run of an assignor on a live group."""

import functools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Broker, Consumer
from tests.support.command_line import Run
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def live() -> Iterator[Any]:
    """A broker with a group of two members and two topics of three partitions; range gives one member four of them."""
    with (
        Broker.embedded(settings={"group.initial.rebalance.delay.ms": 0}) as broker,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
    ):
        for topic in ("t0", "t1"):
            admin.create_topic(topic, partitions=3)
        stop = threading.Event()

        def consume(name: str) -> None:
            settings: dict[str, Any] = {"group_id": "plan", "client_id": name, "heartbeat_interval_ms": 100}
            settings |= {"bootstrap_servers": broker.bootstrap, "partition_assignment_strategy": "range"}
            with Consumer(**settings) as consumer:
                consumer.subscribe(["t0", "t1"])
                while not stop.is_set():
                    consumer.poll(100)

        def is_settled() -> bool:
            if "plan" not in [group.group_id for group in admin.list_groups()]:
                return False
            (group,) = admin.describe_groups(["plan"])
            return group.state == "Stable" and sorted(len(m.assignment) for m in group.members) == [2, 4]

        threads = [threading.Thread(target=consume, args=(name,)) for name in ("C0", "C1")]
        for thread in threads:
            thread.start()
        try:
            eventually(is_settled)
            yield broker
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)


@pytest.fixture
def bootstrap(live: Any) -> Any:
    return live.bootstrap


@pytest.fixture
def plan(run: Run) -> Run:
    return functools.partial(run, "group", "plan")


def by_client(out: str, key: str = "partitions") -> dict[str, list[str]]:
    return {m["client_id"]: [f"{p['topic']}p{p['partition']}" for p in m[key]] for m in json.loads(out)["members"]}


def test_the_plan_shows_the_assignment_of_another_assignor(plan: Run) -> None:
    """Spec: A2. The group itself uses range."""
    status, out, _ = plan("plan", "--assignor", "roundrobin", "--json")
    assert status == 0
    assert by_client(out) == {"C0": ["t0p0", "t0p2", "t1p1"], "C1": ["t0p1", "t1p0", "t1p2"]}
    assert json.loads(out)["moved"] == 3
    assert json.loads(out)["assignor_now"] == "range"


def test_sticky_moves_as_few_partitions_as_possible(plan: Run) -> None:
    """Spec: A3. From four and two to three and three is one move."""
    status, out, _ = plan("plan", "--assignor", "sticky", "--json")
    assert (status, json.loads(out)["moved"]) == (0, 1)
    assert [len(got) for got in by_client(out).values()] == [3, 3]


def test_cooperative_sticky_shows_what_the_second_rebalance_assigns(plan: Run) -> None:
    _, out, _ = plan("plan", "--assignor", "cooperative-sticky")
    assert "unassigned" in out
    assert "second rebalance" in out


def test_the_plan_can_leave_out_a_member(plan: Run) -> None:
    _, out, _ = plan("plan", "--assignor", "range", "--without", "C1", "--json")
    assert by_client(out) == {"C0": ["t0p0", "t0p1", "t0p2", "t1p0", "t1p1", "t1p2"]}


def test_a_custom_assignor_is_imported_from_the_current_directory(
    plan: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec: A6."""
    (tmp_path / "my_assignors.py").write_text(
        "from ottla.assignors import PartitionAssignor\n"
        "class LastTakesAll(PartitionAssignor):\n"
        "    name = 'last-takes-all'\n"
        "    def assign_partitions(self, cluster, subscriptions):\n"
        "        *rest, last = sorted(subscriptions)\n"
        "        topics = subscriptions[last].topics\n"
        "        return {last: [p for t in topics for p in cluster.partitions_of(t)]} | {m: [] for m in rest}\n"
        "class Forgetful(LastTakesAll):\n"
        "    name = 'forgetful'\n"
        "    def assign_partitions(self, cluster, subscriptions):\n"
        "        return {}\n"
    )
    monkeypatch.chdir(tmp_path)
    _, out, _ = plan("plan", "--assignor", "my_assignors:LastTakesAll")
    assert "last-takes-all" in out
    assert "t0: 0-2; t1: 0-2" in out
    status, _, err = plan("plan", "--assignor", "my_assignors:Forgetful")
    assert status != 0
    assert "forgetful left out" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--assignor", "rnage"), "unknown assignor rnage"),
        (("plam", "--assignor", "range"), "group plam does not exist"),
        (("plan", "--assignor", "range", "--without", "C0", "--without", "C1"), "has no members"),
    ],
)
def test_an_impossible_plan_is_rejected_with_one_line(plan: Run, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = plan(*arguments)
    assert status != 0
    assert message in err
    assert not out
    assert len(err.splitlines()) == 1
