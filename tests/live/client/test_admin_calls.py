"""Admin calls about features, configs, log directories and producers."""

from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Admin, Broker, ErrorCode, KafkaError, OttlaError, Producer, TopicPartition, TransactionFatal
from ottla.client.core.model import LATEST, ConfigResource
from tests.support.waiting import eventually


@pytest.fixture
def admin(broker: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def place(admin: Admin, topic: str) -> TopicPartition:
    admin.create_topic(topic, partitions=1)
    return TopicPartition(topic, 0)


def test_features_are_described_with_their_finalized_level(admin: Admin) -> None:
    features = {feature.name: feature for feature in admin.describe_features()}
    agreed = features["transaction.version"]
    assert agreed.min_version <= agreed.finalized == 2 <= agreed.max_version
    (node, *_) = admin.describe_cluster().brokers
    assert {f.name for f in admin.describe_features(node.node_id)} == features.keys()


def test_a_feature_is_downgraded_and_upgraded_again() -> None:
    """Clients follow the level: transactions of both versions (KIP-890) are committed."""

    place = TopicPartition("t", 0)
    with Broker.embedded() as broker, Admin(bootstrap_servers=broker.bootstrap) as own:

        def level() -> int:
            return {feature.name: feature.finalized for feature in own.describe_features()}["transaction.version"]

        own.create_topic("t")
        with pytest.raises(KafkaError) as caught:
            own.update_features({"transaction.version": 1})
        assert caught.value.code == ErrorCode.INVALID_UPDATE_VERSION
        own.update_features({"transaction.version": 1}, allow_downgrade=True, validate_only=True)
        assert level() == 2
        for version, end in ((1, 2), (0, 4), (2, 6)):
            own.update_features({"transaction.version": version}, allow_downgrade=True)
            assert level() == version
            names = {"bootstrap.servers": broker.bootstrap, "transactional.id": f"x{version}"}
            with Producer(names) as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send("t", b"v")
            committed = own.list_offsets({place: LATEST}, isolation_level="read_committed")[place]
            assert committed is not None
            assert committed.offset == end, "a record and its marker"


def test_config_resources_are_listed_and_described(admin: Admin, place: TopicPartition) -> None:
    (node, *_) = admin.describe_cluster().brokers
    eventually(lambda: ConfigResource("topic", place.topic) in admin.list_config_resources())
    assert ConfigResource("broker", f"{node.node_id}") in admin.list_config_resources(["broker"])
    assert {resource.kind for resource in admin.list_config_resources(["topic"])} == {"topic"}
    settings = {entry.name: entry for entry in admin.describe_configs("broker", f"{node.node_id}")}
    assert settings["offsets.retention.minutes"].value == "10080"
    (explained,) = admin.describe_configs("topic", place.topic, names=["retention.ms"], with_documentation=True)
    assert explained.documentation
    assert explained.config_type == "long"
    assert explained.is_default


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("topics", "t", "'topics' is not a kind of config resource"),
        ("broker", "one", "'one' is not the id of a broker"),
    ],
)
def test_configs_of_unknown_resources_are_refused(admin: Admin, kind: str, name: str, said: str) -> None:
    with pytest.raises(OttlaError, match=said):
        admin.describe_configs(kind, name)
    with pytest.raises(OttlaError, match=said):
        admin.alter_configs(kind, name, {"retention.ms": "1"})
    with pytest.raises(OttlaError, match="is not a kind of config resource"):
        admin.list_config_resources(["topics"])


def test_fencing_producers_aborts_their_open_transactions(admin: Admin, broker: Any, place: Any) -> None:
    """Spec: E3. As a successor would, without being one."""
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=place.topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"open", partition=0)
        producer.flush()
        (writing,) = admin.describe_producers([place])[place]
        assert writing.transaction_start_offset == 0
        (listed,) = [t for t in admin.list_transactions(states=["Ongoing"]) if t.transactional_id == place.topic]
        assert listed.producer_id == writing.producer_id
        fenced = admin.fence_producers([place.topic])
        assert fenced[place.topic].producer_epoch > writing.producer_epoch
        eventually(lambda: admin.describe_producers([place])[place][0].transaction_start_offset == -1)
        with pytest.raises(TransactionFatal) as caught:
            producer.commit_transaction()
        assert caught.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    (described,) = admin.describe_transactions([place.topic])
    assert described.state in ("Empty", "CompleteAbort")
    assert described.partitions == ()


def test_log_directories_list_the_size_of_every_replica(admin: Admin, broker: Any, place: TopicPartition) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_and_wait(place.topic, b"x" * 10_000)
    (directory,) = admin.describe_log_dirs()
    sizes = {replica.partition: replica.size_bytes for replica in directory.replicas}
    assert sizes[place] > 10_000
    assert directory.total_bytes > directory.usable_bytes > 0
    for ask in (lambda: admin.describe_log_dirs([99]), lambda: admin.describe_features(99)):
        with pytest.raises(KafkaError, match=r"there is no broker 99 .the brokers are") as caught:
            ask()
        assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE
