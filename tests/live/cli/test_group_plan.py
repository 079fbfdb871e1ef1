"""`ottla group plan`: a dry run of an assignor on a live group."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import eventually

from ottla import Admin, Broker, Consumer
from ottla.cli.main import main


@pytest.fixture(scope="module")
def live() -> Iterator[Any]:
    """A broker with a group of two, by range over two topics of three: one member has four partitions."""
    with (
        Broker.embedded(settings={"group.initial.rebalance.delay.ms": 0}) as broker,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
    ):
        for topic in ("t0", "t1"):
            admin.create_topic(topic, partitions=3)
        stop = threading.Event()

        def consume(name: str) -> None:
            settings = {"group_id": "plan", "client_id": name, "partition_assignment_strategy": "range"}
            with Consumer(bootstrap_servers=broker.bootstrap, heartbeat_interval_ms=100, **settings) as consumer:
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
                thread.join(60)


@pytest.fixture
def run(live: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("OTTLA_BOOTSTRAP", live.bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> tuple[int, str, str]:
        status = main(["group", "plan", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def by_client(out: str, key: str = "partitions") -> dict[str, list[str]]:
    return {m["client_id"]: [f"{p['topic']}p{p['partition']}" for p in m[key]] for m in json.loads(out)["members"]}


def test_the_plan_shows_what_another_assignor_would_give(run: Any) -> None:
    """MISSION A2's shares, on a live group that runs by A1's."""
    status, out, _ = run("plan", "--assignor", "roundrobin", "--json")
    assert status == 0
    assert by_client(out) == {"C0": ["t0p0", "t0p2", "t1p1"], "C1": ["t0p1", "t1p0", "t1p2"]}
    assert json.loads(out)["moved"] == 3
    assert json.loads(out)["assignor_now"] == "range"


def test_sticky_moves_only_what_it_must(run: Any) -> None:
    """MISSION A3: from four and two to three and three is one move."""
    status, out, _ = run("plan", "--assignor", "sticky", "--json")
    assert (status, json.loads(out)["moved"]) == (0, 1)
    assert [len(got) for got in by_client(out).values()] == [3, 3]


def test_cooperative_sticky_first_takes_away_and_says_so(run: Any) -> None:
    _, out, _ = run("plan", "--assignor", "cooperative-sticky")
    assert "nobody gets" in out and "second rebalance" in out


def test_a_member_can_be_left_out(run: Any) -> None:
    _, out, _ = run("plan", "--assignor", "range", "--without", "C1", "--json")
    assert by_client(out) == {"C0": ["t0p0", "t0p1", "t0p2", "t1p0", "t1p1", "t1p2"]}


def test_ones_own_assignor_is_found_where_one_works(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MISSION A6."""
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
    _, out, _ = run("plan", "--assignor", "my_assignors:LastTakesAll")
    assert "last-takes-all" in out and "t0: 0-2; t1: 0-2" in out
    status, _, err = run("plan", "--assignor", "my_assignors:Forgetful")
    assert status != 0 and "forgetful left out" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--assignor", "rnage"), "there is no assignor rnage"),
        (("plam", "--assignor", "range"), "group plam does not exist"),
        (("plan", "--assignor", "range", "--without", "C0", "--without", "C1"), "no members to assign to"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_line(run: Any, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = run(*arguments)
    assert status != 0 and message in err and not out and len(err.splitlines()) == 1
