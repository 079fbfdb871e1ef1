"""`ottla cluster` on three brokers: what it shows, how it moves replicas, and what it refuses. Spec: B10"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla
from ottla.broker.embedded.cluster import EmbeddedCluster
from tests.support.command_line import Run
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedCluster]:
    with ottla.Broker.embedded(brokers=3, settings={"broker.rack": "r"}) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: EmbeddedCluster) -> EmbeddedCluster:
    running.restore()
    return running


@pytest.fixture
def bootstrap(cluster: EmbeddedCluster) -> str:
    return cluster.bootstrap


@pytest.fixture
def orders(run: Run, topic: str) -> Iterator[str]:
    """A topic with three partitions and two replicas of each."""
    run("cluster", "watch", "--until-in-sync")  # brokers of the last test come back
    places = ["--partitions", "3", "--replication", "2"]
    assert run("topic", "create", topic, *places).status == 0
    yield topic
    assert run("topic", "delete", topic).status == 0


def replicas(run: Run, topic: str) -> list[list[int]]:
    (described,) = run("topic", "describe", topic, "--json").json
    return [partition["replicas"] for partition in described["partitions"]]


def test_the_overview_shows_brokers_leaders_and_epochs(run: Run, orders: str) -> None:
    shown = run("cluster")
    assert ", all in sync" in shown.out
    assert "(epoch " in shown.out
    document = run("cluster", "--json").json
    assert document["controller"] in (0, 1, 2)
    assert document["controller_epoch"] >= 1
    assert sum(broker["leads"] for broker in document["brokers"]) == document["partitions"]
    assert all(broker["running"] for broker in document["brokers"])
    assert not document["under_replicated"]
    assert not document["offline"]


def test_a_dead_broker_and_what_it_held_are_shown(run: Run, cluster: EmbeddedCluster, orders: str) -> None:
    victim = replicas(run, orders)[0][0]
    cluster.kill(victim)
    eventually(lambda: bool(run("cluster", "--json").json["under_replicated"]))
    document = run("cluster", "--json").json
    (down,) = [broker for broker in document["brokers"] if not broker["running"]]
    assert down["id"] == victim
    assert down["leads"] == 0
    assert {each["broker"] for each in document["behind"]} == {victim}
    assert f"{victim} (down)" in run("cluster").out
    assert "under-replicated" in run("cluster").out
    described = run("topic", "describe", orders)
    assert f"{victim} (down)" in described.out
    (partitions,) = run("topic", "describe", orders, "--json").json
    first = partitions["partitions"][0]
    assert first["out_of_sync_replicas"] == first["offline_replicas"] == [victim]
    cluster.restart(victim)
    watched = run("cluster", "watch", "--until-in-sync", "--interval", "0.1")
    assert watched.status == 0
    assert watched.out.splitlines()[-1].endswith("all in sync")
    assert "(down)" not in run("topic", "describe", orders).out


def test_a_broker_that_returned_is_found_by_a_client_that_knew_it_was_gone(cluster: EmbeddedCluster) -> None:
    cluster.kill(2)
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        eventually(lambda: [node.node_id for node in admin.describe_cluster().brokers] == [0, 1])
        admin.describe_log_dirs([0])
        with pytest.raises(ottla.KafkaError, match=r"there is no broker 2 \(the brokers are 0, 1"):
            admin.describe_log_dirs([2])
        cluster.restart(2)
        assert [directory.node_id for directory in admin.describe_log_dirs([2])] == [2]


def test_a_broker_is_stopped_only_when_the_others_can_do_without_it(
    run: Run, cluster: EmbeddedCluster, orders: str
) -> None:
    assert run("cluster", "reassign", f"{orders}:0=0,1", f"{orders}:1=0,2", f"{orders}:2=0,2", "--wait").status == 0
    assert run("cluster", "wait-in-sync").status == 0
    cluster.kill(0)
    quick = ("--interval", "0.1", "--timeout", "0.3")
    eventually(lambda: run("cluster", "--json").json["partitions_out_of_sync"] >= 3)
    waited = run("cluster", "wait-in-sync", *quick)
    assert (waited.status, "timed out after 0.3 s: not in sync: 2 brokers (down: 0)" in waited.err) == (1, True)
    needed = run("cluster", "wait-in-sync", "--before-stopping", "2", *quick)
    assert needed.status == 1
    assert "2 partitions would be unavailable without broker 2: " in needed.err
    assert f"{orders}-1, {orders}-2" in needed.err
    # Broker 0 is down, so partition 0 is only on broker 1.
    assert f"{orders}-0" in run("cluster", "wait-in-sync", "--before-stopping", "1", *quick).err
    cluster.restart(0)
    assert run("cluster", "wait-in-sync", "--before-stopping", "2", "--json").status == 0


def test_leadership_goes_back_on_request(run: Run, cluster: EmbeddedCluster, orders: str) -> None:
    victim = replicas(run, orders)[0][0]
    cluster.kill(victim)
    cluster.restart(victim)
    run("cluster", "watch", "--until-in-sync", "--interval", "0.1")
    assert run("cluster", "elect-leaders", orders).status == 0
    (described,) = run("topic", "describe", orders, "--json").json
    assert [p["leader"] for p in described["partitions"]] == [p["replicas"][0] for p in described["partitions"]]
    assert (
        run("cluster", "elect-leaders", orders).out == "nothing to do: the preferred replicas are already the leaders\n"
    )
    assert run("cluster", "elect-leaders", "--json").json == {"elected": [], "failed": []}


def test_replicas_are_moved_and_added(run: Run, cluster: EmbeddedCluster, orders: str) -> None:
    with ottla.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(300):
            producer.send(orders, b"%d" % number)
        producer.flush()
    first, *others = replicas(run, orders)
    moved = [broker for broker in (2, 1, 0) if broker != first[1]]
    target = f"{orders}:0=" + ",".join(map(str, moved))
    assert run("cluster", "reassign", target, "--dry-run").out.endswith("1 partition would be moved\n")
    assert replicas(run, orders) == [first, *others]
    assert run("cluster", "reassign", target, "--wait").status == 0
    assert replicas(run, orders) == [moved, *others]
    grown = run("cluster", "reassign", orders, "--replication", "3", "--wait", "--json").json
    assert len(grown["moves"]) == 3
    assert all(len(each) == 3 for each in replicas(run, orders))
    assert run("cluster", "reassign").out == "nothing is being moved\n"
    with ottla.Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(orders, partition) for partition in range(3)])
        found: list[bytes | None] = []
        while len(found) < 300:
            records = consumer.poll(300_000)
            assert records, f"{len(found)} of 300 records"
            found += [record.value for record in records]
    assert len(set(found)) == 300


def test_a_move_can_be_throttled(run: Run, orders: str) -> None:
    def limits() -> list[str]:
        words = ("topic", orders), ("broker", "0")
        entries = [entry for each in words for entry in run("config", "describe", *each, "--json").json]
        return sorted(f"{entry['name']}={entry['value']}" for entry in entries if "throttled" in entry["name"])

    before = replicas(run, orders)[0]
    (new,) = {0, 1, 2} - set(before)
    target = f"{orders}:0={before[0]},{new}"
    dry = run("cluster", "reassign", target, "--throttle", "5000000", "--dry-run")
    assert (dry.status, limits()) == (0, [])
    moved = run("cluster", "reassign", target, "--throttle", "5000000")
    assert "each broker copies at most 5,000,000 bytes/s" in moved.out
    assert moved.out.endswith("when done, remove the limit with: ottla cluster reassign --unthrottle\n")
    expected = [
        "follower.replication.throttled.rate=5000000",
        f"follower.replication.throttled.replicas=0:{new}",
        "leader.replication.throttled.rate=5000000",
        f"leader.replication.throttled.replicas=0:{before[0]},0:{before[1]}",
    ]
    eventually(lambda: limits() == expected)
    eventually(lambda: replicas(run, orders)[0] == [before[0], new])
    assert run("cluster", "reassign", "--unthrottle").out.endswith("1 topic had one\n")
    eventually(lambda: limits() == [])
    back = run("cluster", "reassign", f"{orders}:0={before[0]},{before[1]}", "--throttle", "5000000", "--wait")
    assert back.out.endswith("removed the limit\n")
    assert replicas(run, orders)[0] == before
    eventually(lambda: limits() == [])


def test_a_file_in_kafkas_format_moves_partitions(run: Run, orders: str, tmp_path: Path) -> None:
    wanted = [list(reversed(each)) for each in replicas(run, orders)]
    moves = [{"topic": orders, "partition": n, "replicas": each} for n, each in enumerate(wanted)]
    (tmp_path / "moves.json").write_text(json.dumps({"version": 1, "partitions": moves}))
    assert run("cluster", "reassign", "--file", str(tmp_path / "moves.json"), "--wait").status == 0
    assert replicas(run, orders) == wanted


def test_a_move_to_a_broker_that_is_down_can_be_cancelled(run: Run, cluster: EmbeddedCluster, orders: str) -> None:
    before = replicas(run, orders)
    (missing,) = {0, 1, 2} - set(before[0])
    cluster.kill(missing)
    target = f"{orders}:0={before[0][0]},{missing}"
    assert run("cluster", "reassign", target).status == 0
    assert f"{orders}-0" in run("cluster", "reassign").out
    assert "being moved" in run("cluster").out
    assert run("cluster", "reassign", "--cancel").out == "cancelled 1 move\n"
    assert run("cluster", "reassign", "--cancel").out == "nothing is being moved\n"
    assert replicas(run, orders) == before


def test_a_drained_broker_has_no_replicas(run: Run, orders: str) -> None:
    drained = run("cluster", "drain", "2")
    assert drained.status == 0, drained.err
    assert drained.out.endswith("broker 2 has no replicas; it can be stopped\n")
    assert not any(2 in each for each in replicas(run, orders))
    assert run("cluster", "drain", "2", "--json").json == {"started": True, "moves": []}


def test_a_broker_that_is_needed_is_not_drained(run: Run, orders: str) -> None:
    run("cluster", "reassign", orders, "--replication", "3", "--wait")
    refused = run("cluster", "drain", "0")
    assert refused.status == 1
    assert refused.err.startswith("ottla: cannot drain broker 0: ")
    assert "has 3 replicas, and there are only 2 other brokers" in refused.err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["drain", "7"], 2, "there is no broker 7 (the brokers are 0, 1, 2)"),
        (["drain", "two"], 2, "invalid value for 'BROKER'"),
        (["reassign", "TOPIC:0=0,7"], 2, "TOPIC-0: there is no broker 7 (the brokers are 0, 1, 2)"),
        (["reassign", "TOPIC:0=1,1"], 2, "TOPIC-0: a broker is listed twice"),
        (["reassign", "TOPIC:9=1"], 2, "there is no partition TOPIC-9 (topic TOPIC has 0 to 2)"),
        (["reassign", "nothing:0=1"], 1, "topic nothing does not exist"),
        (["reassign", "TOPIC"], 2, "nothing to do for TOPIC"),
        (["reassign", "--replication", "2"], 2, "--replication needs topics"),
        (["reassign", "TOPIC", "--replication", "4"], 1, "cannot place 4 replicas: only 3 brokers are running"),
        (["reassign", "--cancel", "TOPIC:0=1"], 2, "--cancel cannot be combined with new moves"),
        (["reassign", "--throttle", "5"], 2, "--throttle needs something to move"),
        (["reassign", "TOPIC:0=1", "--throttle", "0"], 2, "invalid value for '--throttle'"),
        (["reassign", "TOPIC:0=1", "--unthrottle"], 2, "--unthrottle cannot be combined"),
        (["reassign", "--file", "/no/such/file"], 2, "cannot read /no/such/file"),
        (["elect-leaders", "--unclean"], 2, "--unclean needs topics"),
        (["elect-leaders", "nothing"], 1, "topic nothing does not exist"),
        (["watch", "--interval", "0"], 2, "invalid value for '--interval'"),
        (["wait-in-sync", "--timeout", "-1"], 2, "invalid value for '--timeout'"),
        (["wait-in-sync", "--before-stopping", "7"], 2, "there is no broker 7 (the brokers are 0, 1, 2"),
        (["frobnicate"], 2, "no such command 'frobnicate'"),
    ],
)
def test_mistakes_are_explained_in_one_line(run: Run, orders: str, words: list[str], status: int, message: str) -> None:
    ran = run("cluster", *(word.replace("TOPIC", orders) for word in words))
    assert ran.status == status, ran.err
    assert ran.out == ""
    assert ran.err.startswith(f"ottla: {message.replace('TOPIC', orders)}"), ran.err
    assert ran.err.count("\n") == 1


def test_more_replicas_than_brokers_are_refused(run: Run, topic: str) -> None:
    refused = run("topic", "create", topic, "--replication", "4")
    assert refused.status == 1
    assert "INVALID_REPLICATION_FACTOR" in refused.err


def test_a_pipe_gets_json_lines(cluster: EmbeddedCluster) -> None:
    words = ["cluster", "watch", "--json", "--interval", "0.1", "--bootstrap", cluster.bootstrap]
    with subprocess.Popen([sys.executable, "-m", "ottla", *words], stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        documents = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.terminate()
    assert [len(document["brokers"]) for document in documents] == [3, 3]
