"""A cluster moves its metadata from a file to etcd and back, with everything that its clients have stored."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.cluster import OttlaCluster, OttlaNode
from tests.support.processes.cluster_load import QUICK
from tests.support.processes.etcd import EtcdCluster
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


def migrate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ottla", "cluster", "migrate-metadata", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


class Clients:
    """A transactional producer and a group, which continue over each migration."""

    def __init__(self, cluster: OttlaCluster) -> None:
        self.cluster = cluster
        self.sent: list[bytes] = []

    def produce(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "transactional.id": "moving"})
        producer.init_transactions(60)
        for is_kept in (True, False):
            producer.begin_transaction()
            for number in range(20):
                producer.produce("orders", b"%d-%d-%d" % (len(self.sent), is_kept, number), partition=number % 4)
            if is_kept:
                producer.commit_transaction(60)
            else:
                producer.flush(PATIENCE_S)
                producer.abort_transaction(60)
        self.sent += [b"%d-1-%d" % (len(self.sent), number) for number in range(20)]

    def read_on(self, expected: int) -> set[bytes]:
        """What the group has not read yet."""
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["orders"])
        found: set[bytes] = set()
        try:
            while len(found) < expected:
                for message in consumer.consume(100, 1.0):
                    assert message.error() is None, message.error()
                    found.add(message.value() or b"")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found


def use(cluster: OttlaCluster, location: str) -> None:
    for node in cluster.nodes.values():
        assert isinstance(node, OttlaNode)
        node.metadata = location
        node.launch()
    cluster.await_ready()
    cluster.await_in_sync("orders", partitions=4)


def stop(cluster: OttlaCluster) -> None:
    for node in cluster.nodes.values():
        node.terminate()


@pytest.mark.long
def test_topics_groups_and_transactions_survive_the_way_to_etcd_and_back(etcd: EtcdCluster) -> None:
    target = etcd.url("/migrated")
    with OttlaCluster(settings=QUICK) as cluster:
        source = str(cluster.home / "metadata.sqlite")
        clients = Clients(cluster)
        cluster.create_topic("orders", partitions=4, configs={"retention.ms": "123456789"})
        clients.produce()
        assert clients.read_on(20) == set(clients.sent)
        running = migrate("--from", source, "--to", target)
        assert running.returncode != 0
        assert "brokers 1, 2, 3 are using" in running.stderr
        epochs = [state.leader_epoch for state in cluster.describe("orders")]
        for start, end in ((source, target), (target, source)):
            stop(cluster)
            done = migrate("--from", start, "--to", end, "--json")
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert (answer["from"], answer["to"], answer["verified"]) == (start, end, True)
            assert answer["topics"] >= 3
            use(cluster, end)
            clients.produce()
            assert clients.read_on(20) == set(clients.sent[-20:]), "the group goes on where it was"
            later = [state.leader_epoch for state in cluster.describe("orders")]
            assert all(new > old for new, old in zip(later, epochs, strict=True)), "epochs never go back"
            epochs = later
            assert not any("unclean restart" in node.log for node in cluster.nodes.values())
        stop(cluster)
        assert migrate("--from", source, "--to", target).returncode == 0, "the target knows that it is the old copy"


def test_mistakes_are_explained_in_one_line(etcd: EtcdCluster, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.sqlite")
    target = etcd.url("/mistakes")
    for arguments, text in (
        (("--from", missing, "--to", target), f"there is no metadata at {missing}"),
        (("--from", target, "--to", str(tmp_path)), "has no metadata of a cluster"),
        (("--from", target, "--to", target), "--from and --to are the same"),
        (("--from", target, "--to", "zookeeper://a"), "zookeeper://a is neither a file nor etcd://"),
        (("--from", target, "--to", "etcd://u:hunter2@a/x"), "must not contain a user or a password"),
    ):
        done = migrate(*arguments)
        assert done.returncode != 0, arguments
        assert text in done.stderr
        assert "hunter2" not in done.stderr
        assert len(done.stderr.strip().splitlines()) <= 4, done.stderr
        assert not (tmp_path / "missing.sqlite").exists()
