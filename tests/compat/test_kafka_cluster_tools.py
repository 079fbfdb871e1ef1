"""Kafka's own tools operate a cluster of three brokers: elections, reassignments, quorum, features. Spec: B10."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Admin, Broker, NewTopic, TopicPartition
from ottla.broker.embedded.cluster import EmbeddedCluster
from tests.compat.test_kafka_tools import TOOLS, Tools
from tests.support.clients.java import JavaClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    client = JavaClient()
    reason = client.unavailable()
    if reason is not None:
        pytest.skip(reason)
    yield client
    client.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with Broker.embedded(brokers=3, settings={"auto.leader.rebalance.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture
def tools(java: JavaClient, cluster: EmbeddedCluster) -> Tools:
    return Tools(java, cluster.bootstrap)


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin


def leader_of(admin: Admin, topic: str) -> int:
    return admin.describe_topics([topic])[0].partitions[0].leader


def test_kafka_leader_election(tools: Tools, admin: Admin) -> None:
    admin.create_topics([NewTopic("elected", assignments={0: (0, 1, 2)})])
    one = ("--topic", "elected", "--partition", "0", "--election-type")
    main = TOOLS + "LeaderElectionCommand"
    assert "Valid replica already elected" in tools.run(main, *one, "preferred")
    admin.alter_partition_reassignments({TopicPartition("elected", 0): (1, 0, 2)})
    assert leader_of(admin, "elected") == 0
    assert "Successfully completed leader election (PREFERRED)" in tools.run(main, *one, "preferred")
    assert leader_of(admin, "elected") == 1
    assert "Valid replica already elected" in tools.run(main, *one, "unclean")


def test_kafka_reassign_partitions(tools: Tools, admin: Admin, tmp_path: Path) -> None:
    admin.create_topics([NewTopic("moved", assignments={0: (0,)})])
    main = TOOLS + "reassign.ReassignPartitionsCommand"
    plan = tmp_path / "plan.json"
    moves = [{"topic": "moved", "partition": 0, "replicas": [2, 1]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    started = tools.run(main, "--execute", "--reassignment-json-file", str(plan), "--throttle", "10000000")
    assert "Successfully started partition reassignment for moved-0" in started

    def is_complete() -> bool:
        answer = tools.run(main, "--verify", "--reassignment-json-file", str(plan))
        return "Reassignment of partition moved-0 is completed." in answer

    eventually(is_complete)
    assert leader_of(admin, "moved") in (1, 2)
    assert "No partition reassignments found." in tools.run(main, "--list")
    moves[0]["replicas"] = [0, 7]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    assert "Unknown broker id 7" in tools.run(main, "--execute", "--reassignment-json-file", str(plan), status=1)


def test_kafka_metadata_quorum(tools: Tools, cluster: EmbeddedCluster) -> None:
    main = TOOLS + "MetadataQuorumCommand"
    status = tools.run(main, "describe", "--status")
    assert "LeaderEpoch:" in status
    assert "MaxFollowerLag:         0" in status
    for node in ("0", "1", "2"):
        assert f'"id": {node}' in status
    replication = tools.run(main, "describe", "--replication")
    assert replication.count("Follower") == 2
    assert replication.count("Leader\n") + replication.count("Leader ") >= 1


def test_kafka_features(tools: Tools) -> None:
    described = tools.run(TOOLS + "FeatureCommand", "describe")
    assert "Feature: transaction.version" in described
    assert "Feature: ottla.metadata.version" in described


def test_kafka_cluster_lists_and_unregisters_a_stopped_broker(tools: Tools, cluster: EmbeddedCluster) -> None:
    main = TOOLS + "ClusterTool"

    def listed() -> str:
        arguments = ["list-endpoints", "--bootstrap-server", cluster.bootstrap, "--include-fenced-brokers"]
        return str(tools.java.call("tool", "", main=main, arguments=arguments)["output"])

    assert listed().count("unfenced") == 3
    cluster.stop(2)
    eventually(lambda: listed().count("unfenced") == 2)
    assert "fenced" in listed().replace("unfenced", "")
    arguments = ["unregister", "--bootstrap-server", cluster.bootstrap, "--id", "2"]
    answer = tools.java.call("tool", "", main=main, arguments=arguments)
    assert "Broker 2 is no longer registered." in answer["output"]
    assert "fenced" not in listed().replace("unfenced", "")
    cluster[2].start()
    eventually(lambda: listed().count("unfenced") == 3)
