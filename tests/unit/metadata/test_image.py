"""The image is built only from the store's entries, and shares unchanged parts."""

import pytest

from ottla.metadata import records
from ottla.metadata.image import NO_IMAGE, ClusterImage, PartitionImage
from ottla.metadata.store import Change, Entry
from ottla.types import Endpoint, TopicPartition

ID_A, ID_B = bytes([1]) * 16, bytes([2]) * 16


def put(key: str, value: bytes, version: int = 0, revision: int = 1) -> Change:
    return Change(key, Entry(key, value, version, revision, revision), revision)


def gone(key: str) -> Change:
    return Change(key, None, 2)


def topic_entries(name: str, topic_id: bytes, *leaders: int, configs: dict[str, str] | None = None) -> list[Change]:
    return [
        put(records.topic_key(name), records.write_topic(topic_id, [(leader,) for leader in leaders])),
        put(records.topic_config_key(name), records.write_config(configs or {})),
        *(
            put(records.partition_state_key(name, index), records.write_partition_state(leader, 4, [leader]), version=7)
            for index, leader in enumerate(leaders)
        ),
    ]


def two_topics() -> ClusterImage:
    return NO_IMAGE.apply(
        topic_entries("a", ID_A, 0, 1) + topic_entries("b", ID_B, 0, configs={"retention.ms": "5"}), 1
    )


def test_topics_brokers_configs_controller_and_cluster_id_are_read() -> None:
    image = two_topics().apply(
        [
            put("/brokers/ids/3", records.write_broker({"PLAINTEXT": Endpoint("::1", 9092)}, "r1", 5), revision=9),
            put("/config/brokers/<default>", records.write_config({"x": "1"})),
            put("/config/brokers/3", records.write_config({"y": "2"})),
            put("/controller", records.write_controller(3, 5)),
            put("/cluster/id", records.write_cluster_id("abc")),
        ],
        9,
    )
    assert image.topics["a"].partitions == (
        PartitionImage(0, 0, 4, 7, (0,), (0,)),
        PartitionImage(1, 1, 4, 7, (1,), (1,)),
    )
    assert image.topics["b"].configs == {"retention.ms": "5"}
    assert image.topic_names == {ID_A: "a", ID_B: "b"}
    assert image.brokers[3] == (3, 9, {"PLAINTEXT": Endpoint("::1", 9092)}, "r1", False, {})
    assert image.broker_configs == {"": {"x": "1"}, "3": {"y": "2"}}
    assert (image.controller_id, image.cluster_id, image.version) == (3, "abc", 9)


def test_keys_have_kafkas_zookeeper_layout() -> None:
    """Spec: B11. Tools and operators know these paths from Kafka on ZooKeeper."""
    assert records.broker_key(3) == "/brokers/ids/3"
    assert records.topic_key("orders") == "/brokers/topics/orders"
    assert records.partition_state_key("orders", 2) == "/brokers/topics/orders/partitions/2/state"
    assert records.topic_config_key("orders") == "/config/topics/orders"


def test_changing_a_topic_affects_neither_other_topics_nor_the_old_image() -> None:
    before = two_topics()
    state = records.write_partition_state(-1, 5, [1])
    after = before.apply([put(records.partition_state_key("a", 1), state, version=8)], 2)
    assert after.topics["a"].partitions[1] == PartitionImage(1, -1, 5, 8, (1,), (1,))
    assert after.topics["a"].partitions[0] is before.topics["a"].partitions[0]
    assert after.topics["b"] is before.topics["b"]
    assert after.brokers is before.brokers
    assert after.broker_configs is before.broker_configs
    assert before.topics["a"].partitions[1].leader == 1


def test_a_deleted_topic_is_gone_by_name_and_by_id() -> None:
    keys = [records.partition_state_key("a", 0), records.partition_state_key("a", 1)]
    after = two_topics().apply([*map(gone, keys), gone(records.topic_config_key("a")), gone(records.topic_key("a"))], 2)
    assert set(after.topics) == {"b"}
    assert after.topic_names == {ID_B: "b"}
    assert after.find_topic_by_id(ID_A) is None


def test_a_recreated_topic_keeps_only_the_name_of_the_old_one() -> None:
    after = two_topics().apply([*topic_entries("b", ID_A[:15] + b"x", 2, 2), gone(records.topic_config_key("b"))], 2)
    assert after.topics["b"].topic_id == ID_A[:15] + b"x"
    assert [partition.leader for partition in after.topics["b"].partitions] == [2, 2]
    assert after.topics["b"].configs == {}
    assert set(after.topic_names.values()) == {"a", "b"}
    assert ID_B not in after.topic_names


def test_a_partition_without_a_state_has_no_leader() -> None:
    image = NO_IMAGE.apply([put(records.topic_key("t"), records.write_topic(ID_A, [(1, 2)]))], 1)
    assert image.topics["t"].partitions == (PartitionImage(0, -1, 0, -1, (1, 2), ()),)


@pytest.mark.parametrize("name", ["state", "partitions", "topics", "controller"])
def test_a_topic_can_have_the_name_of_a_path_element(name: str) -> None:
    image = NO_IMAGE.apply(topic_entries(name, ID_A, 0, configs={"retention.ms": "1"}), 1)
    assert image.topics[name].partitions[0].leader == 0
    assert image.topics[name].configs == {"retention.ms": "1"}


def test_unknown_keys_do_not_change_the_image() -> None:
    image = two_topics()
    assert image.apply([put(records.PRODUCER_ID_BLOCK, b"{}"), put("/brokers/topics", b"{}")], 5) is image


def test_partitions_are_found_or_not() -> None:
    image = two_topics()
    found = image.find_partition(TopicPartition("a", 1))
    assert found is not None
    assert found.index == 1
    for nowhere in (TopicPartition("a", 2), TopicPartition("a", -1), TopicPartition("z", 0)):
        assert image.find_partition(nowhere) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("/brokers/topics/t", b"not json"),
        ("/brokers/topics/t", b"[]"),
        ("/brokers/topics/t", b'{"partitions":{"1":[0]},"topic_id":"AAAAAAAAAAAAAAAAAAAAAA"}'),
        ("/brokers/topics/t", b'{"partitions":{},"topic_id":"short"}'),
        ("/brokers/topics/t/partitions/0/state", b'{"leader":1}'),
        ("/brokers/ids/1", b'{"endpoints":["PLAINTEXT:/nowhere"]}'),
        ("/config/topics/t", b'{"version":1}'),
        ("/controller", b"{}"),
        ("/cluster/id", b"{}"),
    ],
)
def test_an_invalid_value_is_reported_with_its_key(key: str, value: bytes) -> None:
    with pytest.raises(records.RecordError, match=key.replace("/", "/")):
        NO_IMAGE.apply([put(key, value)], 1)


def test_values_are_encoded_like_kafkas_in_zookeeper() -> None:
    assert records.write_partition_state(0, 3, (0, 1)) == (
        b'{"version":1,"leader":0,"leader_epoch":3,"isr":[0,1],"controller_epoch":0}'
    )
    assert records.write_topic(ID_A, [(0, 1)]) == (
        b'{"version":3,"topic_id":"AQEBAQEBAQEBAQEBAQEBAQ","partitions":{"0":[0,1]},'
        b'"adding_replicas":{},"removing_replicas":{}}'
    )
    assert records.write_config({"a": "1"}) == b'{"version":1,"config":{"a":"1"}}'
    assert records.read_producer_id_block("", records.write_producer_id_block(1, 1000, 1999)) == (1000, 1999)


def test_reassignments_eligible_leaders_and_known_brokers_are_read() -> None:
    """Spec: B10."""
    recovering = (records.RecoveringReplica(3), records.RecoveringReplica(1, 4, 100))
    image = NO_IMAGE.apply(
        [
            put(records.topic_key("t"), records.write_topic(ID_A, [(1, 2, 3), (1,)], {0: (3,)}, {0: (1,)})),
            put(records.partition_state_key("t", 0), records.write_partition_state(1, 4, [1], 2, [2], recovering)),
            put(records.partition_state_key("t", 1), records.write_partition_state(1, 4, [1])),
            put(records.broker_key(3), records.write_broker({}, None, 5, is_leaving=True), revision=9),
            put(records.known_broker_key(3), records.write_broker({}, "r", 5), version=4, revision=9),
            put(records.CONTROLLER_EPOCH, records.write_controller_epoch(7)),
        ],
        9,
    )
    assert image.topics["t"].partitions == (
        PartitionImage(0, 1, 4, 0, (1, 2, 3), (1,), (2,), (3,), (1,), recovering),
        PartitionImage(1, 1, 4, 0, (1,), (1,)),
    )
    assert [p.is_reassigning for p in image.topics["t"].partitions] == [True, False]
    assert (image.brokers[3].is_leaving, image.known_brokers[3].epoch, image.controller_epoch) == (True, 9, 7)
    after = image.apply([put(records.topic_key("t"), records.write_topic(ID_A, [(2, 3), (1,)]))], 10)
    assert not after.topics["t"].partitions[0].is_reassigning
    assert after.topics["t"].partitions[0].replicas == (2, 3)
    assert after.topics["t"].partitions[1] is image.topics["t"].partitions[1]


def test_settings_of_users_client_ids_and_addresses_are_read_from_kafkas_keys() -> None:
    stored = {
        "users/alice": {"producer_byte_rate": "1024", "SCRAM-SHA-256": "salt=…"},
        "users/alice/clients/<default>": {"consumer_byte_rate": "2048"},
        "clients/app%2F1": {"request_percentage": "50"},
        "ips/10.0.0.1": {"connection_creation_rate": "5"},
    }
    image = NO_IMAGE.apply(
        [put(records.entity_config_key(path), records.write_config(config)) for path, config in stored.items()], 1
    )
    assert image.entity_configs == stored
    image = image.apply([gone("/config/users/alice"), gone("/config/ips/10.0.0.1")], 2)
    assert list(image.entity_configs) == ["users/alice/clients/<default>", "clients/app%2F1"]
