"""The records of `__consumer_offsets`, byte for byte. Spec: B1, C3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.group.classic_group import ClassicGroup, GroupState, Member
from ottla.coordinator.group.records import (
    CommittedOffset,
    TopicCommit,
    check_offset_value,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_commit_times,
    read_group_key,
    read_group_value,
    read_offset_key,
    read_offset_value,
    record_offset_of,
    stored_form,
    value_of,
)
from ottla.protocol.framing import decode_versioned, encode_record_key, encode_versioned
from ottla.protocol.messages.group_records import (
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.primitives import ProtocolError
from ottla.types import ZERO_UUID, partition_for
from tests.support.worlds.group_world import GroupWorld

AT = 1_700_000_000_000
TOPIC_ID = bytes(range(16))

texts = st.text(max_size=40)
int64s = st.integers(-(2**63), 2**63 - 1)
offsets = st.builds(
    CommittedOffset,
    offset=int64s,
    leader_epoch=st.integers(-(2**31), 2**31 - 1),
    metadata=st.one_of(texts, st.text(min_size=100, max_size=200)),
    commit_timestamp=int64s,
    expire_timestamp=st.just(-1),
    topic_id=st.one_of(st.just(ZERO_UUID), st.binary(min_size=16, max_size=16)),
)

# --- golden bytes -------------------------------------------------------------------------------------------


def test_the_offset_key_is_kafkas() -> None:
    assert offset_key("g", "t", 0).hex() == "000100016700017400000000"


def test_the_offset_value_is_kafkas_with_and_without_a_topic_id() -> None:
    plain = CommittedOffset(42, 5, "m", AT)
    assert offset_value(plain).hex() == "0004000000000000002a00000005026d0000018bcfe5680000"
    named = plain._replace(topic_id=TOPIC_ID)
    expected = "0004000000000000002a00000005026d0000018bcfe56800010010000102030405060708090a0b0c0d0e0f"
    assert offset_value(named).hex() == expected


def test_the_offset_value_of_kafka_before_4_1_is_read() -> None:
    old = bytes.fromhex("0003000000000000002a0000000500016d0000018bcfe56800")
    assert read_offset_value(old) == CommittedOffset(42, 5, "m", AT)


def test_the_group_key_is_kafkas() -> None:
    assert group_key("g").hex() == "0002000167"
    assert read_group_key(group_key("g")) == "g"


def test_the_group_value_is_kafkas() -> None:
    group = ClassicGroup("g", AT)
    group.generation, group.protocol = 1, "range"
    member = Member("m1", None, "c", "/127.0.0.1", 300_000, 45_000, [("range", b"\x01")], b"\x02")
    group.add(member, "consumer")
    assert group_value(group.to_record()).hex() == (
        "00030008636f6e73756d657200000001000572616e676500026d310000018bcfe568000000000100026d31ffff000163"
        "000a2f3132372e302e302e31000493e00000afc800000001010000000102"
    )


def test_the_value_of_an_empty_group_is_kafkas() -> None:
    empty = ClassicGroup("g", AT)
    assert group_value(empty.to_record()).hex() == "0003000000000000ffffffff0000018bcfe5680000000000"


def test_a_first_join_stores_the_golden_empty_group() -> None:
    group = GroupWorld(now=AT)
    group.join()
    (record,) = group.log
    assert record.key.hex() == "0002000167"
    assert record.value is not None
    assert record.value.hex() == "0003000000000000ffffffff0000018bcfe5680000000000"


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("consumerGroupId", 20),
        ("g", 3),
        ("my-group", 12),
        ("test-consumer-group", 31),
        ("console-consumer-1234", 9),
        ("polygenelubricants", 0),
    ],
)
def test_a_groups_coordinator_is_the_leader_of_this_partition(group: str, partition: int) -> None:
    """Spec: B1. The last hashes to -2**31, which counts as 0."""
    assert partition_for(group, 50) == partition


# --- the hand-written codec against the schema codec -----------------------------------------------------------


@given(texts, texts, st.integers(-(2**31), 2**31 - 1))
def test_offset_keys_match_the_schema_codec(group: str, topic: str, partition: int) -> None:
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    assert offset_key(group, topic, partition) == encode_record_key(key)
    assert read_offset_key(encode_record_key(key)) == (group, topic, partition)
    legacy = LegacyOffsetCommitKey(group=group, topic=topic, partition=partition)
    assert read_offset_key(encode_record_key(legacy)) == (group, topic, partition)


@given(offsets)
def test_offset_values_match_the_schema_codec(committed: CommittedOffset) -> None:
    table = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp,
        topic_id=committed.topic_id,
    )
    assert offset_value(committed) == encode_versioned(table, 4)


@given(offsets, st.one_of(st.just(-1), st.integers(0, 2**62)), st.booleans(), st.integers(-1, 2**31 - 1))
def test_the_records_of_a_commit_are_those_of_its_partitions(
    committed: CommittedOffset, expires_at: int, is_bare: bool, partition: int
) -> None:
    asked = committed._replace(expire_timestamp=expires_at, metadata="" if is_bare else committed.metadata)
    commit = TopicCommit("group", "topic", asked.topic_id, asked.commit_timestamp, expires_at)
    record = commit.record(partition, asked.offset, asked.leader_epoch, asked.metadata)
    assert record == (offset_key("group", "topic", partition), offset_value(asked))


@given(offsets, st.integers(0, 4), st.one_of(st.just(-1), st.integers(0, 2**62)))
def test_every_version_of_an_offset_value_is_read(committed: CommittedOffset, version: int, expires_at: int) -> None:
    table = OffsetCommitValue(offset=committed.offset, metadata=committed.metadata)
    table.commit_timestamp = committed.commit_timestamp
    expected = CommittedOffset(committed.offset, -1, committed.metadata, committed.commit_timestamp)
    if version == 1:
        table.expire_timestamp = expires_at
        expected = expected._replace(expire_timestamp=expires_at)
    if version >= 3:
        table.leader_epoch = committed.leader_epoch
        expected = expected._replace(leader_epoch=committed.leader_epoch)
    if version >= 4:
        table.topic_id = committed.topic_id
        expected = expected._replace(topic_id=committed.topic_id)
    value = encode_versioned(table, version)
    check_offset_value(value)
    assert read_offset_value(value) == expected
    assert read_commit_times(value) == (expected.commit_timestamp, expected.expire_timestamp)


@given(offsets, st.integers(0, 2**62))
def test_an_offset_with_an_explicit_retention_is_stored_in_version_one(
    committed: CommittedOffset, expires_at: int
) -> None:
    asked = committed._replace(expire_timestamp=expires_at)
    value = offset_value(asked)
    assert value[:2] == b"\x00\x01"
    assert read_offset_value(value) == asked._replace(leader_epoch=-1, topic_id=ZERO_UUID)


@given(st.binary(max_size=80))
def test_a_value_that_passes_the_check_can_be_read(value: bytes) -> None:
    """Values are kept encoded, so a value that passes the check must decode later."""
    for data in (value, b"\x00\x04" + value, b"\x00\x03" + value):
        try:
            expected = decode_versioned(OffsetCommitValue, data)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                check_offset_value(data)
            with pytest.raises(ProtocolError):
                read_offset_value(data)
            continue
        check_offset_value(data)
        found = read_offset_value(data)
        assert (found.offset, found.metadata, found.topic_id) == (expected.offset, expected.metadata, expected.topic_id)
        assert read_commit_times(data) == (expected.commit_timestamp, expected.expire_timestamp)


@given(offsets, st.data())
def test_a_damaged_value_is_read_as_the_schema_codec_reads_it(committed: CommittedOffset, data: st.DataObject) -> None:
    value = bytearray(offset_value(committed))
    value[data.draw(st.integers(2, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = decode_versioned(OffsetCommitValue, bytes(value))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            check_offset_value(bytes(value))
    else:
        check_offset_value(bytes(value))
        found = read_offset_value(bytes(value))
        assert found.metadata == expected.metadata
        assert found.topic_id == expected.topic_id


@given(st.binary(max_size=60) | st.builds(offset_key, texts, texts, st.integers(0, 9)).map(lambda key: key[2:-1]))
def test_a_damaged_offset_key_is_refused(key: bytes) -> None:
    """Or read as the schema codec reads it, if that consumes all bytes."""
    data = b"\x00\x01" + key
    try:
        expected = OffsetCommitKey.decode(data, 0, 2)
        assert encode_record_key(expected) == data, "something is left over"
    except (ProtocolError, AssertionError):
        with pytest.raises(ProtocolError):
            read_offset_key(data)
    else:
        assert read_offset_key(data) == (expected.group, expected.topic, expected.partition)


@pytest.mark.parametrize("key", ["0001ffff00017400000000", "00010001678000", "0001000167ffff00000000", "0001"])
def test_a_key_with_a_negative_length_is_refused(key: str) -> None:
    with pytest.raises(ProtocolError):
        read_offset_key(bytes.fromhex(key))


@given(st.binary(max_size=60), st.integers(0, 2**63 - 1))
def test_the_stored_form_holds_the_value_and_its_record_offset(value: bytes, record_offset: int) -> None:
    stored = stored_form(value, record_offset)
    assert value_of(stored) == value
    assert record_offset_of(stored) == record_offset


# --- groups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_value_is_read(version: int) -> None:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout=6_000, subscription=b"s", assignment=b"a"
    )
    if version >= 1:
        member.rebalance_timeout = 9_000
    if version >= 3:
        member.group_instance_id = "i"
    value = GroupMetadataValue(protocol_type="consumer", generation=4, protocol="range", leader="m", members=[member])
    if version >= 2:
        value.current_state_timestamp = AT
    group = ClassicGroup.from_record("g", read_group_value(encode_versioned(value, version)), 5)
    assert (group.state, group.generation, group.leader_id) == (GroupState.STABLE, 4, "m")
    assert group.state_timestamp == (AT if version >= 2 else -1)
    found = group.members["m"]
    assert found.rebalance_timeout_ms == (9_000 if version >= 1 else 6_000), "the session timeout replaces it"
    assert found.instance_id == ("i" if version >= 3 else None)
    assert (found.protocols, found.assignment) == ([("range", b"s")], b"a")


def test_a_group_is_read_as_it_was_written() -> None:
    group = GroupWorld()
    group.settle("one", "two", static=True, session_ms=7_000, rebalance_ms=8_000)
    before = group.shard.groups["g"]
    group.fail_over()
    after = group.shard.groups["g"]
    assert after is not before
    assert group_value(after.to_record()) == group_value(before.to_record())
    assert after.static_members == before.static_members


def test_a_stored_leader_that_is_not_a_member_is_replaced() -> None:
    member = GroupMetadataValue.MemberMetadata(member_id="m", session_timeout=6_000)
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", leader="ghost")
    value.members = [member]
    assert ClassicGroup.from_record("g", value, 5).leader_id == "m"


def test_records_of_other_group_types_are_skipped() -> None:
    group = GroupWorld()
    for kind in (3, 4, 5, 6, 7, 8, 10, 16, 17, 99, 30_000):
        group.shard.replay(0, kind.to_bytes(2, "big") + b"\x00\x01g", b"\x00\x00", 0)
        group.shard.replay(0, kind.to_bytes(2, "big") + b"\x00\x01g", None, 0)
    for key in (None, b"", b"\x00"):
        group.shard.replay(0, key, b"\x00\x00", 0)
    assert not group.shard.groups
