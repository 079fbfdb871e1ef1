"""The rules for creating topics, adding partitions and deleting topics."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from ottla.broker.settings.config import Settings, load_config
from ottla.errors import ErrorCode
from ottla.metadata import records
from ottla.metadata.changes import topic_changes as controller
from ottla.metadata.changes.topic_changes import MorePartitions, NewTopic, TopicReference, TopicResult
from ottla.metadata.controller.decisions import Decision, Put
from ottla.metadata.image import NO_IMAGE, ClusterImage
from ottla.metadata.store import Change, Entry
from ottla.types import ZERO_UUID, Endpoint

NONE = ErrorCode.NONE


def applied(image: ClusterImage, changes: Iterable[Any]) -> ClusterImage:
    """The image after a decision is committed, as delivered by the store."""
    version = image.version + 1
    delivered = []
    for change in changes:
        entry = Entry(change.key, change.value, 0, version, version) if isinstance(change, Put) else None
        delivered.append(Change(change.key, entry, version))
    return image.apply(delivered, version)


class Cluster:
    """Live brokers, and calls to the controller's rules."""

    def __init__(self, brokers: int = 1, racks: Sequence[str] = (), **settings: str) -> None:
        self.settings = Settings(load_config({name.replace("_", "."): value for name, value in settings.items()}))
        self.ids = itertools.count(1)
        self.image = applied(
            NO_IMAGE,
            [
                Put(
                    records.broker_key(broker),
                    records.write_broker({"PLAINTEXT": Endpoint("h", 1)}, racks[broker] if racks else None, 0),
                )
                for broker in range(brokers)
            ],
        )

    def creates(self, *topics: NewTopic, validate_only: bool = False) -> list[TopicResult]:
        return self._commits(
            controller.create_topics(
                self.image,
                topics,
                self.settings,
                lambda: next(self.ids).to_bytes(16, "big"),
                validate_only=validate_only,
            )
        )

    def create(self, name: str, partitions: int = -1, replicas: int = -1, **configs: str) -> TopicResult:
        pairs = [(name.replace("_", "."), value) for name, value in configs.items()]
        (result,) = self.creates(NewTopic(name, partitions, replicas, configs=pairs))
        return result

    def assign(self, name: str, *assignments: tuple[int, Sequence[int]], **others: Any) -> TopicResult:
        (result,) = self.creates(NewTopic(name, assignments=assignments, **others))
        return result

    def grow(self, *requests: MorePartitions, validate_only: bool = False) -> list[TopicResult]:
        return self._commits(controller.create_partitions(self.image, requests, validate_only=validate_only))

    def delete(self, *references: TopicReference) -> list[TopicResult]:
        return self._commits(controller.delete_topics(self.image, references, self.settings))

    def _commits(self, decision: Decision[list[TopicResult]]) -> list[TopicResult]:
        self.image = applied(self.image, decision.changes)
        return decision.reply

    def replicas(self, name: str) -> list[tuple[int, ...]]:
        return [partition.replicas for partition in self.image.topics[name].partitions]


def test_a_created_topic_has_leaders_at_epoch_0_and_a_unique_id() -> None:
    cluster = Cluster(brokers=3)
    result = cluster.create("orders", 4, 2, retention_ms="1000")
    assert (result.error, result.partitions, result.replication_factor) == (NONE, 4, 2)
    topic = cluster.image.topics["orders"]
    assert topic.topic_id == result.topic_id != ZERO_UUID
    assert topic.configs == {"retention.ms": "1000"}
    for partition in topic.partitions:
        assert (partition.leader, partition.leader_epoch) == (partition.replicas[0], 0)
        assert partition.isr == partition.replicas


def test_minus_one_selects_the_brokers_default() -> None:
    cluster = Cluster(brokers=3, num_partitions="5", default_replication_factor="2")
    result = cluster.create("t")
    assert (result.partitions, result.replication_factor) == (5, 2)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_valid_names_are_accepted(name: str) -> None:
    assert Cluster().create(name).error == NONE


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a b", "a/b", "tör", "a\n", "a,b", "a:b", "\0", "topic\u00b2", "a*"]
)
def test_invalid_names_are_rejected(name: str) -> None:
    cluster = Cluster()
    result = cluster.create(name)
    assert result.error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.message
    assert cluster.image.topics == {}


def test_names_that_differ_only_in_dot_and_underscore_collide() -> None:
    cluster = Cluster()
    assert cluster.create("a.b").error == NONE
    result = cluster.create("a_b")
    assert (result.error, result.message) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'a_b' collides with existing topic: a.b",
    )
    assert cluster.create("a-b").error == NONE
    assert [r.error for r in cluster.creates(NewTopic("c.d"), NewTopic("c_d"))] == [
        NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


def test_an_existing_topic_cannot_be_created_again() -> None:
    cluster = Cluster()
    first = cluster.create("t")
    assert cluster.create("t").error == ErrorCode.TOPIC_ALREADY_EXISTS
    assert cluster.image.topics["t"].topic_id == first.topic_id


def test_a_topic_named_twice_in_one_request_is_rejected_once() -> None:
    cluster = Cluster()
    results = cluster.creates(NewTopic("t"), NewTopic("u"), NewTopic("t"))
    assert [(r.name, r.error) for r in results] == [("t", ErrorCode.INVALID_REQUEST), ("u", NONE)]
    assert set(cluster.image.topics) == {"u"}


def test_the_metadata_topic_of_apache_kafka_cannot_be_created() -> None:
    assert Cluster().create("__cluster_metadata").error == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("partitions", [0, -2, -(2**31)])
def test_a_topic_has_at_least_one_partition(partitions: int) -> None:
    assert Cluster().create("t", partitions).error == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("replicas", [0, -2, 2, 3])
def test_the_replication_factor_is_between_1_and_the_number_of_brokers(replicas: int) -> None:
    assert Cluster().create("t", 1, replicas).error == ErrorCode.INVALID_REPLICATION_FACTOR


def test_no_topic_can_be_created_without_brokers() -> None:
    assert Cluster(brokers=0).create("t").error == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_request_for_too_many_partitions_is_rejected() -> None:
    cluster = Cluster()
    assert cluster.create("t", 2**31 - 1).error == ErrorCode.POLICY_VIOLATION
    results = cluster.creates(NewTopic("a", 6000), NewTopic("b", 6000))
    assert [r.error for r in results] == [NONE, ErrorCode.POLICY_VIOLATION]


def test_an_invalid_topic_does_not_affect_the_others() -> None:
    cluster = Cluster()
    results = cluster.creates(NewTopic("good"), NewTopic("bad", 0), NewTopic("also good", 1), NewTopic("fine"))
    assert [r.error == NONE for r in results] == [True, False, False, True]
    assert set(cluster.image.topics) == {"good", "fine"}


def test_validate_only_returns_the_result_and_changes_nothing() -> None:
    cluster = Cluster()
    results = cluster.creates(NewTopic("t", 3), NewTopic("", 1), validate_only=True)
    assert [(r.error, r.partitions) for r in results] == [(NONE, 3), (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)]
    assert cluster.image.topics == {}


# Explicit assignments


def test_an_explicit_assignment_is_used() -> None:
    cluster = Cluster(brokers=4)
    result = cluster.assign("t", (1, [3, 2]), (0, [1, 0]))
    assert (result.error, result.partitions, result.replication_factor) == (NONE, 2, 2)
    assert cluster.replicas("t") == [(1, 0), (3, 2)]
    assert cluster.image.topics["t"].partitions[1].leader == 3


@pytest.mark.parametrize("others", [{"partitions": 1}, {"replication_factor": 1}])
def test_an_explicit_assignment_cannot_be_combined_with_counts(others: dict[str, int]) -> None:
    assert Cluster().assign("t", (0, [0]), **others).error == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        ([(0, [])], "empty replica list"),
        ([(0, [0, 0])], "more than once"),
        ([(0, [9])], "no such broker"),
        ([(0, [0]), (0, [1])], "multiple"),
        ([(0, [0]), (2, [1])], "consecutive"),
        ([(1, [0])], "consecutive"),
        ([(-1, [0])], "consecutive"),
        ([(0, [0]), (1, [0, 1])], "replica(s)"),
    ],
)
def test_an_invalid_assignment_is_rejected(assignments: list[tuple[int, list[int]]], why: str) -> None:
    result = Cluster(brokers=2).assign("t", *assignments)
    assert result.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert result.message is not None
    assert why in result.message


# Settings of new topics


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.sm", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", "9223372036854775808"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,shred"),
        ("compression.type", "rar"),
        ("min.insync.replicas", "0"),
        ("segment.bytes", "14"),
        ("preallocate", "maybe"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("message.timestamp.type", "createtime"),
        ("remote.storage.enable", "true"),
    ],
)
def test_an_invalid_setting_is_rejected(name: str, value: str) -> None:
    cluster = Cluster()
    (result,) = cluster.creates(NewTopic("t", configs=[(name, value)]))
    assert result.error == ErrorCode.INVALID_CONFIG
    assert result.message is not None
    assert name in result.message
    assert cluster.image.topics == {}


def test_an_unknown_setting_suggests_a_similar_name() -> None:
    (result,) = Cluster().creates(NewTopic("t", configs=[("retention.sm", "1")]))
    assert result.message == "Unknown topic config name: retention.sm (did you mean retention.ms?)"


def test_a_setting_without_a_value_is_rejected() -> None:
    (result,) = Cluster().creates(NewTopic("t", configs=[("retention.ms", None)]))
    assert result.error == ErrorCode.INVALID_CONFIG


def test_contradicting_settings_are_rejected() -> None:
    result = Cluster().create("t", min_compaction_lag_ms="10", max_compaction_lag_ms="9")
    assert result.error == ErrorCode.INVALID_CONFIG


def test_apache_kafka_settings_without_effect_are_stored() -> None:
    cluster = Cluster()
    (result,) = cluster.creates(
        NewTopic("t", configs=[("leader.replication.throttled.replicas", "0:1"), ("remote.storage.enable", "false")])
    )
    assert result.error == NONE
    assert cluster.image.topics["t"].configs["leader.replication.throttled.replicas"] == "0:1"


# CreatePartitions


def test_adding_partitions_keeps_the_existing_ones() -> None:
    cluster = Cluster(brokers=3)
    cluster.create("t", 2, 2)
    before = cluster.image.topics["t"]
    assert [r.error for r in cluster.grow(MorePartitions("t", 5))] == [NONE]
    after = cluster.image.topics["t"]
    assert len(after.partitions) == 5
    assert after.partitions[:2] == before.partitions
    assert after.topic_id == before.topic_id
    assert all(len(p.replicas) == 2 and p.leader == p.replicas[0] for p in after.partitions[2:])
    assert len({p.leader for p in after.partitions[:3]}) == 3, "leadership continues round-robin"


def test_the_new_partition_count_must_be_larger() -> None:
    cluster = Cluster()
    cluster.create("t", 3)
    for count in (3, 2, 0, -1):
        (result,) = cluster.grow(MorePartitions("t", count))
        assert result.error == ErrorCode.INVALID_PARTITIONS, count
    assert cluster.grow(MorePartitions("t", 2**31 - 1))[0].error == ErrorCode.POLICY_VIOLATION
    assert len(cluster.image.topics["t"].partitions) == 3


def test_adding_partitions_to_an_unknown_topic_is_rejected() -> None:
    assert Cluster().grow(MorePartitions("t", 3))[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_partitions_can_be_added_with_assignments() -> None:
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 2)
    cases: list[tuple[list[list[int]], ErrorCode]] = [
        ([[0, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[0, 1], [1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[0, 1], [1, 9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[0, 1], [2, 0]], NONE),
    ]
    for assignments, expected in cases:
        assert cluster.grow(MorePartitions("t", 3, assignments))[0].error == expected, assignments
    assert cluster.replicas("t")[1:] == [(0, 1), (2, 0)]


def test_a_topic_named_twice_in_create_partitions_is_rejected_and_validate_only_changes_nothing() -> None:
    cluster = Cluster()
    cluster.create("t")
    assert [r.error for r in cluster.grow(MorePartitions("t", 2), MorePartitions("t", 3))] == [
        ErrorCode.INVALID_REQUEST
    ]
    assert cluster.grow(MorePartitions("t", 2), validate_only=True)[0].error == NONE
    assert len(cluster.image.topics["t"].partitions) == 1


# DeleteTopics


def test_topics_are_deleted_by_name_and_by_id() -> None:
    cluster = Cluster()
    a, b = cluster.create("a"), cluster.create("b", 3, retention_ms="1")
    results = cluster.delete(TopicReference("a"), TopicReference(None, b.topic_id))
    assert [(r.name, r.topic_id, r.error) for r in results] == [("a", a.topic_id, NONE), ("b", b.topic_id, NONE)]
    assert cluster.image.topics == {}
    assert cluster.image.topic_names == {}


def test_a_recreated_topic_has_a_new_id_and_no_old_settings() -> None:
    cluster = Cluster()
    old = cluster.create("t", 3, retention_ms="1")
    cluster.delete(TopicReference("t"))
    new = cluster.create("t", 1)
    assert new.topic_id != old.topic_id
    assert cluster.image.topics["t"].configs == {}
    assert len(cluster.image.topics["t"].partitions) == 1
    assert cluster.delete(TopicReference(None, old.topic_id))[0].error == ErrorCode.UNKNOWN_TOPIC_ID


def test_deleting_an_unknown_topic_is_rejected() -> None:
    results = Cluster().delete(TopicReference("t"), TopicReference(None, b"x" * 16), TopicReference("a/b"))
    assert [r.error for r in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_a_topic_is_referenced_once_by_name_or_id() -> None:
    cluster = Cluster()
    t = cluster.create("t")
    assert [r.error for r in cluster.delete(TopicReference(None))] == [ErrorCode.INVALID_REQUEST]
    assert [r.error for r in cluster.delete(TopicReference("t", t.topic_id))] == [ErrorCode.INVALID_REQUEST]
    assert [r.error for r in cluster.delete(TopicReference("t"), TopicReference("t"))] == [ErrorCode.INVALID_REQUEST]
    assert [r.error for r in cluster.delete(TopicReference("t"), TopicReference(None, t.topic_id))] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert "t" in cluster.image.topics


def test_topic_deletion_can_be_disabled() -> None:
    cluster = Cluster(delete_topic_enable="false")
    cluster.create("t")
    assert cluster.delete(TopicReference("t"))[0].error == ErrorCode.TOPIC_DELETION_DISABLED
    assert "t" in cluster.image.topics


# Producer ids


def test_producer_id_blocks_never_overlap() -> None:
    first = controller.next_producer_id_block(0, None, 1)
    assert first.reply == range(1000)
    (put,) = first.changes
    assert isinstance(put, Put)
    second = controller.next_producer_id_block(1, put.value, 5000)
    assert second.reply == range(1000, 6000)
