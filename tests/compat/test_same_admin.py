"""Admin requests to Ottla and to Apache Kafka get equal responses: about the cluster, topics and transactions.

Ids, addresses, times and the words of error texts differ between any two brokers and are left out.
"""

from typing import Any

import pytest

from ottla.protocol.messages.create_partitions import CreatePartitionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.update_features import UpdateFeaturesRequest
from tests.support.wire.raw import Side, batch

pytestmark = pytest.mark.oracle

# ---- the cluster -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_features_are_updated_and_rejected_the_same(same: Any, version: int) -> None:
    """Requests that would succeed are only validated: the broker is shared, and levels change what its clients do."""
    name = "transaction.version"
    updates = [[(name, 2, 1)], [(name, 1, 1)], [(name, 3, 1)], [(name, -1, 1)], [("no.such", 1, 1)], []]
    if version >= 1:
        updates += [[(name, level, kind)] for level in (0, 1, 2) for kind in (0, 1, 2, 3, 4)]
        updates += [[(name, 1, 2), ("no.such", 1, 1)], [(name, 9, 1), (name, 2, 1)], [("no.such", 0, 2)]]

    def script(side: Side) -> Any:
        outcomes = []
        for update in updates:
            request = UpdateFeaturesRequest(
                feature_updates=[
                    UpdateFeaturesRequest.FeatureUpdateKey(
                        feature=feature, max_version_level=level, upgrade_type=kind if version else 1
                    )
                    for feature, level, kind in update
                ],
                validate_only=version >= 1,
            )
            answer = side.ask(request, version)
            # Apache Kafka has a message for a success: the word NONE.
            answer["results"] = [(r["feature"], r["error_code"]) for r in answer["results"]]
            outcomes.append(answer)
        return outcomes

    same(script)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_described_the_same(same: Any, version: int) -> None:
    def script(side: Side) -> Any:
        requests = [DescribeClusterRequest(), DescribeClusterRequest(include_cluster_authorized_operations=True)]
        if version >= 1:
            # 1 stands for brokers, 2 for controllers, which only a controller describes.
            requests += [DescribeClusterRequest(endpoint_type=kind) for kind in (-1, 0, 2, 3)]
        if version >= 2:
            requests.append(DescribeClusterRequest(include_fenced_brokers=True))
        return [side.ask(request, version) for request in requests]

    same(script)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_filters_of_transactions_are_checked_the_same(same: Any, version: int) -> None:
    filters: list[dict[str, Any]] = [{"state_filters": ["Nonsense"]}, {"state_filters": ["ongoing"]}]
    filters += [{"producer_id_filters": [-7]}]
    if version >= 2:
        filters += [{"transactional_id_pattern": text} for text in ("(", "*x", "no-such-id", r"\p{Lower}")]
    same(lambda side: [side.ask(ListTransactionsRequest(**each), version) for each in filters])


def test_no_partition_is_being_moved(same: Any) -> None:
    request = ListPartitionReassignmentsRequest

    def script(side: Side) -> Any:
        asked = request.ListPartitionReassignmentsTopics(name=side.topic, partition_indexes=[0, 9])
        return [side.ask(request(topics=topics), 0) for topics in (None, [], [asked])]

    same(script)


def log_dirs(side: Side, version: int, topics: list[tuple[str, list[int]]]) -> Any:
    request = DescribeLogDirsRequest(
        topics=[
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=partitions)
            for name, partitions in topics
        ]
    )
    (directory,) = side.ask(request, version)["results"]
    assert (directory.pop("total_bytes") > 0) is (directory.pop("usable_bytes") > 0) is (version >= 4)
    for topic in directory["topics"]:
        topic["partitions"].sort(key=lambda partition: partition["partition_index"])
    return directory


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_log_directories_are_described_the_same(same: Any, version: int) -> None:
    def script(side: Side) -> Any:
        side.produce(batch(b"a" * 100))
        asked: list[list[tuple[str, list[int]]]] = [
            [(side.topic, [0, 1])],
            [(side.topic, [1, 7])],
            [(side.topic + "-not", [0])],
            [],
        ]
        return [log_dirs(side, version, topics) for topics in asked]

    same(script)


def test_partitions_are_described_in_pages(same: Any) -> None:
    request = DescribeTopicPartitionsRequest

    def script(side: Side) -> Any:
        names = sorted([side.topic, side.topic + "-not"])
        topics = [request.TopicRequest(name=name) for name in names]
        first = side.connection.ask(request(topics=topics, response_partition_limit=1), 0)
        cursor = first.next_cursor
        answers = [side.plain(first)]
        if cursor is not None:
            follow = request.Cursor(topic_name=cursor.topic_name, partition_index=cursor.partition_index)
            answers.append(side.ask(request(topics=topics, response_partition_limit=10, cursor=follow), 0))
        return answers

    same(script)


# ---- topics ----------------------------------------------------------------------------------------------


def creatable(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> Any:
    assignments = more.pop("assignments", {})
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=p, broker_ids=nodes)
            for p, nodes in assignments.items()
        ],
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=n, value=v) for n, v in more.pop("configs", {}).items()],
    )


@pytest.mark.parametrize("version", range(2, 8))
@pytest.mark.parametrize("validate_only", [False, True])
def test_topics_are_created_and_rejected_the_same(same: Any, version: int, validate_only: bool) -> None:
    def script(side: Side) -> Any:
        node, base = side.node_id, f"{side.topic}-v{version}"
        topics = [
            creatable(base + "-fine", 2, configs={"retention.ms": "1000", "cleanup.policy": "compact"}),
            creatable(base + "-assigned", -1, -1, assignments={0: [node], 1: [node]}),
            creatable(base + "-both", 1, 1, assignments={0: [node]}),
            creatable(base + "-hole", -1, -1, assignments={0: [node], 2: [node]}),
            creatable(base + "-stranger", -1, -1, assignments={0: [node + 77]}),
            creatable(base + "-twice", -1, -1, assignments={0: [node, node]}),
            creatable(base + "-zero", 0),
            creatable(base + "-negative", -2),
            creatable(base + "-replicas", 1, 3),
            creatable(base + "-noreplicas", 1, 0),
            creatable(base + "-double"),
            creatable(base + "-double"),
            creatable(side.topic),
            creatable("im possible"),
            creatable(""),
            creatable(base + "-config", configs={"retention.ms": "soon"}),
            creatable(base + "-nullconfig", configs={"retention.ms": None}),
            creatable(base + "-unknownconfig", configs={"no.such": "1"}),
        ]
        if version >= 4:
            topics.append(creatable(base + "-defaults", -1, -1))
        request = CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)
        answer = side.ask(request, version)
        for topic in answer["topics"]:
            # For the source of min.insync.replicas see docs/protocol.md.
            named = {e["name"]: e for e in topic["configs"] or () if not e["name"].startswith("ottla.")}
            named.pop("min.insync.replicas", None)
            topic["configs"] = named
        return {topic.pop("name"): topic for topic in answer["topics"]}

    same(script)


def test_a_million_partitions_are_rejected_the_same(same: Any) -> None:
    def script(side: Side) -> Any:
        request = CreateTopicsRequest(topics=[creatable(side.topic + "-many", 1_000_000)], timeout_ms=30_000)
        return side.ask(request, 7)["topics"][0]["error_code"]

    same(script)


def test_colliding_names_are_rejected_the_same(same: Any) -> None:
    def script(side: Side) -> Any:
        side.create(side.topic + ".a_b", 1)
        answer = side.ask(CreateTopicsRequest(topics=[creatable(side.topic + "_a.b")], timeout_ms=30_000), 7)
        return answer["topics"][0]["error_code"]

    same(script)


@pytest.mark.parametrize("version", [1, 3, 4, 5, 6])
def test_topics_are_deleted_the_same(same: Any, version: int) -> None:
    def script(side: Side) -> Any:
        name = f"{side.topic}-gone"
        side.create(name, 1)
        identity = side.topic_id
        if version < 6:
            request = DeleteTopicsRequest(topic_names=[name, side.topic + "-not"], timeout_ms=30_000)
        else:
            state = DeleteTopicsRequest.DeleteTopicState
            request = DeleteTopicsRequest(
                topics=[
                    state(name=None, topic_id=identity),
                    state(name=side.topic + "-not"),
                    state(name=None, topic_id=bytes(15) + b"\x05"),
                ],
                timeout_ms=30_000,
            )
        answer = side.ask(request, version)
        return sorted(answer["responses"], key=lambda response: str(response["name"]))

    same(script)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_partitions_are_added_the_same(same: Any, version: int) -> None:
    """Spec: R4. The CreatePartitions response."""
    request = CreatePartitionsRequest

    def script(side: Side) -> Any:
        def asked(name: str, count: int, assignments: list[list[int]] | None = None) -> Any:
            return request.CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if assignments is None
                else [request.CreatePartitionsAssignment(broker_ids=nodes) for nodes in assignments],
            )

        node = side.node_id
        outcomes = []
        for topic in [
            asked(side.topic, 2),
            asked(side.topic, 1),
            asked(side.topic, 0),
            asked(side.topic, -5),
            asked(side.topic + "-not", 3),
            asked(side.topic, 3, [[node + 77]]),
            asked(side.topic, 4, [[node]]),
            asked(side.topic, 3, [[node]]),
            asked(side.topic, 5),
        ]:
            answer = side.ask(request(topics=[topic], timeout_ms=30_000, validate_only=False), version)
            outcomes.append(answer["results"][0])
        outcomes.append(
            side.ask(request(topics=[asked(side.topic, 9)], timeout_ms=30_000, validate_only=True), version)
        )
        return outcomes

    same(script)
