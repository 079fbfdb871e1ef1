"""The same group requests to Ottla and to Apache Kafka: states, error codes and stored bytes are equal.

Each script runs on both brokers, and the outcomes are compared.
Spec: B1, B2, B3, B4, B5, B6, C2, C3, R5.
"""

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.client.core.model import CommittedOffset
from ottla.errors import ErrorCode
from ottla.protocol.framing import decode_record_key, decode_versioned, encode_record_key, encode_versioned
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.group_records import KEYS, VALUES, GroupMetadataValue, OffsetCommitValue
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.records.record_batch import iter_batches, read_records
from ottla.protocol.schema import Message
from ottla.types import ZERO_UUID, TopicPartition, partition_for
from tests.support.waiting import eventually
from tests.support.wire.raw import RawConnection, Side, plain
from tests.support.wire.raw_group import RawMember, await_coordinator, await_rebalance, hand_out, settle, subscription

pytestmark = pytest.mark.oracle

Same = Callable[[Callable[[Side], Any]], Any]

HIDDEN = frozenset({"throttle_time_ms", "host", "port", "topic_id"})
MEMBER_ID = re.compile(r".+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Story:
    """One group on one broker. Responses are normalized: member ids are replaced by the names of the members."""

    def __init__(self, side: Side, group_id: str) -> None:
        self.side = side
        self.topic = side.topic
        self.group_id = group_id
        self.connection = RawConnection(side.bootstrap)
        self.opened: list[RawMember] = []
        self.names: dict[str, str] = {}
        await_coordinator(self.connection, group_id)

    def close(self) -> None:
        self.connection.close()
        for member in self.opened:
            member.close()

    def member(self, name: str, **more: Any) -> RawMember:
        # The session lasts longer than any script, however slowly it runs.
        more = {"session_timeout_ms": 600_000, "rebalance_timeout_ms": 600_000, **more}
        member = RawMember(self.side.bootstrap, self.group_id, [self.topic], client_id=name, **more)
        self.opened.append(member)
        return member

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, 0), TopicPartition(self.topic, 1)]

    def normalized(self, answer: Any) -> Any:
        """An answer without what differs from run to run: a member id becomes its prefix and a number."""
        return self._named(plain(answer, node_id=self.side.node_id, hide=HIDDEN))

    def _named(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._named(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            named = [self._named(item) for item in value]
            # Kafka lists members in the order of a hash table.
            is_members = bool(named) and isinstance(named[0], dict) and "member_id" in named[0]
            return sorted(named, key=lambda member: str(member["member_id"])) if is_members else named
        if isinstance(value, str) and MEMBER_ID.fullmatch(value):
            if value not in self.names:
                prefix = value[:-37]
                alike = sum(known[:-37] == prefix for known in self.names)
                self.names[value] = f"{prefix} #{alike + 1}"
            return self.names[value]
        return value

    def ask(self, request: Message, version: int) -> Any:
        return self.normalized(self.connection.ask(request, version))

    def describe(self, version: int = 5, group_id: str | None = None) -> Any:
        wanted = self.group_id if group_id is None else group_id
        return self.ask(DescribeGroupsRequest(groups=[wanted]), version)["groups"]

    def listed(self, version: int = 5, **filters: Any) -> Any:
        answer = self.connection.ask(ListGroupsRequest(**filters), version)
        return [plain(group) for group in answer.groups if group.group_id == self.group_id]

    def fetch_offsets(self, *partitions: int, version: int = 8, **more: Any) -> Any:
        if version >= 8:
            topics = OffsetFetchRequest.OffsetFetchRequestTopics
            asked = [topics(name=self.topic, partition_indexes=list(partitions))] if partitions else None
            group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group_id, topics=asked)
            return self.ask(OffsetFetchRequest(groups=[group], **more), version)
        old = OffsetFetchRequest.OffsetFetchRequestTopic
        named = [old(name=self.topic, partition_indexes=list(partitions))] if partitions else None
        return self.ask(OffsetFetchRequest(group_id=self.group_id, topics=named, **more), version)

    def delete(self, version: int = 2) -> Any:
        return self.ask(DeleteGroupsRequest(groups_names=[self.group_id]), version)

    def commit(
        self,
        partition: int = 0,
        offset: int = 1,
        *,
        topic: str = "",
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        metadata: str | None = "",
        version: int = 8,
        **more: Any,
    ) -> Any:
        """Commits as the member that the arguments describe."""
        part = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic or self.topic, partitions=[part])]
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=topics,
            **more,
        )
        answer = self.connection.ask(request, version)
        return [ErrorCode(p.error_code).name for t in answer.topics for p in t.partitions]


@pytest.fixture
def on_both(same: Same, fresh_name: Callable[[], str]) -> Iterator[Callable[[Callable[[Story], Any]], Any]]:
    """Runs a script about one group on both brokers."""
    name = fresh_name()
    stories: list[Story] = []

    def tell(script: Callable[[Story], Any]) -> Any:
        def run(side: Side) -> Any:
            story = Story(side, name)
            stories.append(story)
            return script(story)

        return same(run)

    yield tell
    for story in stories:
        story.close()


Tell = Callable[[Callable[[Story], Any]], Any]


# States


def test_every_group_state_is_described_and_listed_the_same(on_both: Tell) -> None:
    """Spec: B2. Dead, Empty, PreparingRebalance, CompletingRebalance, Stable."""

    def script(story: Story) -> Any:
        def look() -> Any:
            return [story.describe(version) for version in range(0, 7)] + [story.listed(), story.listed(3)]

        outcome = [look()]
        ann, bob = story.member("ann"), story.member("bob", instance_id="desk")
        outcome += [story.normalized(ann.join()), look()]  # CompletingRebalance
        hand_out(ann, partitions=story.partitions)
        outcome += [look()]  # Stable
        bob.post_join()
        await_rebalance(ann)
        outcome += [look()]  # PreparingRebalance
        ann.post_join()
        outcome += [story.normalized(ann.await_join()), story.normalized(bob.await_join())]
        hand_out(ann, bob, partitions=story.partitions)
        outcome += [look(), story.normalized(ann.heartbeat()), story.normalized(bob.heartbeat())]
        outcome += [story.normalized(ann.leave()), story.normalized(bob.leave()), look()]  # Empty
        outcome += [story.delete(), look()]
        return outcome

    outcome = on_both(script)
    assert outcome[0][0][0]["group_state"] == "Dead"


def test_list_filters(on_both: Tell) -> None:
    def script(story: Story) -> Any:
        story.commit()
        outcome = [story.listed(4, states_filter=[state]) for state in ("Empty", "empty", "Stable", "nonsense")]
        outcome += [story.listed(5, types_filter=[kind]) for kind in ("classic", "Classic", "consumer", "nonsense")]
        outcome += [story.listed(5, states_filter=["Empty", "Stable"], types_filter=["classic"])]
        return outcome

    on_both(script)


# Refusals


@pytest.mark.parametrize("version", [0, 1, 2, 3, 5, 7, 9], ids="v{}".format)
def test_invalid_joins_get_the_same_errors(on_both: Tell, version: int) -> None:
    """Spec: B3, B4. Timeout limits, protocols, member ids."""

    def script(story: Story) -> Any:
        def join(**changes: Any) -> Any:
            protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription([story.topic]))
            request = JoinGroupRequest(
                group_id=story.group_id,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[protocol],
            )
            for name, value in changes.items():
                setattr(request, name, value)
            answer = story.connection.ask(request, version)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                answer.member_id = "an id"
            return story.normalized(answer)

        other = JoinGroupRequest.JoinGroupRequestProtocol(name="other", metadata=b"")
        outcome = [
            join(group_id=""),
            join(session_timeout_ms=5_999),
            join(session_timeout_ms=0),
            join(session_timeout_ms=-1),
            join(session_timeout_ms=1_800_001),
            join(protocols=[]),
            join(protocol_type=""),
            join(member_id="stranger"),
        ]
        ann = story.member("ann")
        settle(ann, partitions=story.partitions)
        outcome += [
            join(protocol_type="connect"),
            join(protocols=[other]),
            join(protocols=[]),
            join(member_id="stranger"),
            ann.heartbeat(),
        ]
        if version >= 5:
            outcome += [
                join(member_id="stranger", group_instance_id="desk"),
                join(member_id=ann.member_id, group_instance_id="desk"),
            ]
        if version >= 4:
            outcome += [join()]
        return outcome

    on_both(script)


def test_invalid_member_requests_get_the_same_errors(on_both: Tell) -> None:
    """Spec: C2. Requests with a wrong generation or member, in each state."""

    def script(story: Story) -> Any:
        def heartbeat(member_id: str, generation: int, instance_id: str | None = None, group_id: str = "") -> Any:
            request = HeartbeatRequest(
                group_id=group_id or story.group_id,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=instance_id,
            )
            return story.ask(request, 4)

        def sync(member: RawMember, **changes: Any) -> Any:
            request = member.sync_request()
            for name, value in changes.items():
                setattr(request, name, value)
            return story.ask(request, 5)

        def leave(member_id: str, instance_id: str | None = None, version: int = 4) -> Any:
            if version < 3:
                return story.ask(LeaveGroupRequest(group_id=story.group_id, member_id=member_id), version)
            identity = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance_id)
            return story.ask(LeaveGroupRequest(group_id=story.group_id, members=[identity]), version)

        outcome = [heartbeat("nobody", 1), heartbeat("nobody", -1), leave("nobody"), leave("nobody", version=1)]
        ann = story.member("ann", instance_id="desk")
        bob = story.member("bob")
        ann.join()
        # CompletingRebalance
        mine: dict[str, Any] = {"member_id": ann.member_id, "instance_id": "desk"}
        outcome += [heartbeat(ann.member_id, 1, "desk"), heartbeat(ann.member_id, 0, "desk")]
        outcome += [story.commit(generation=1, **mine)]
        outcome += [sync(ann, generation_id=7), sync(ann, protocol_name="other"), sync(ann, protocol_type="other")]
        outcome += [sync(ann, member_id="nobody", group_instance_id=None), sync(ann, member_id="nobody")]
        hand_out(ann, partitions=story.partitions)
        # Stable
        outcome += [sync(ann), sync(ann, group_instance_id="other"), sync(ann, group_instance_id=None)]
        outcome += [heartbeat(ann.member_id, 1), heartbeat(ann.member_id, 1, "other"), heartbeat("nobody", 1, "desk")]
        outcome += [heartbeat(ann.member_id, 2, "desk"), heartbeat(ann.member_id, -1, "desk")]
        outcome += [story.commit(generation=1, **mine), story.commit(generation=1, member_id=ann.member_id)]
        outcome += [story.commit(generation=0, **mine), story.commit(generation=2, **mine), story.commit()]
        outcome += [story.commit(member_id="nobody"), story.commit(generation=1), story.commit(instance_id="desk")]
        outcome += [story.commit(generation=1, member_id="nobody", instance_id="desk")]
        outcome += [story.delete(), story.delete(0)]
        # PreparingRebalance
        bob.post_join()
        await_rebalance(ann)
        outcome += [sync(ann), heartbeat(ann.member_id, 1, "desk"), story.commit(generation=1, **mine)]
        outcome += [story.commit(generation=0, **mine), story.commit()]
        outcome += [leave("nobody", "desk"), leave("nobody", "other"), leave("", "other"), leave("", "desk")]
        answer = bob.await_join()
        outcome += [story.normalized(answer)]
        outcome += [heartbeat(ann.member_id, 1, "desk"), story.commit(generation=1, **mine)]
        outcome += [leave(bob.member_id, version=2), leave(bob.member_id, version=2)]
        # Empty
        outcome += [heartbeat(bob.member_id, bob.generation), heartbeat("x", 1, group_id="no such group")]
        outcome += [sync(bob), story.commit(), story.commit(generation=1), story.commit(member_id="x")]
        return outcome

    on_both(script)


def test_static_members_are_replaced_and_fenced_the_same(on_both: Tell) -> None:
    """Spec: R5. The second member with a group.instance.id replaces the first without a rebalance (KIP-345)."""

    def script(story: Story) -> Any:
        first, other = story.member("ann", instance_id="desk"), story.member("bob", instance_id="chair")
        settle(first, other, partitions=story.partitions)
        outcome = [story.describe()]
        # Under the same client id: for a static member that returned, Kafka shows the old client id, Ottla the new one.
        second = story.member("ann", instance_id="desk")
        outcome += [
            story.normalized(second.join()),
            first.heartbeat(),
            other.heartbeat(),
            second.heartbeat(),
            story.describe(),
        ]
        outcome += [story.normalized(second.sync()), first.commit({story.partitions[0]: 1})]
        outcome += [second.commit({story.partitions[0]: 1}), story.normalized(first.leave()), story.describe()]
        third = story.member("ann", instance_id="desk")  # before KIP-814 the leader is not named as the leader
        outcome += [story.normalized(third.join(version=8)), third.heartbeat(), second.heartbeat(), other.heartbeat()]
        bounced = story.member("bob", instance_id="chair")
        outcome += [story.normalized(bounced.join()), bounced.heartbeat(), third.heartbeat()]
        return outcome

    on_both(script)


def test_empty_group_ids(on_both: Tell) -> None:
    """Rejected everywhere except in the commits and fetches of simple consumers."""

    def script(story: Story) -> Any:
        identity = LeaveGroupRequest.MemberIdentity(member_id="m")
        part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
        named = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=story.topic, partitions=[part])
        outcome = [
            story.ask(HeartbeatRequest(group_id="", generation_id=1, member_id="m"), 4),
            story.ask(SyncGroupRequest(group_id="", generation_id=1, member_id="m"), 3),
            story.ask(LeaveGroupRequest(group_id="", members=[identity]), 4),
            story.ask(LeaveGroupRequest(group_id="", member_id="m"), 1),
            story.describe(5, group_id=""),
            story.describe(6, group_id=""),
            story.ask(DeleteGroupsRequest(groups_names=[""]), 2),
            story.ask(OffsetDeleteRequest(group_id="", topics=[named]), 0),
        ]
        story.group_id = ""
        await_coordinator_of_nobody(story)
        outcome += [story.commit(), story.fetch_offsets(0), story.fetch_offsets(0, version=5)]
        return outcome

    on_both(script)


def await_coordinator_of_nobody(story: Story) -> None:
    eventually(lambda: story.fetch_offsets(0)["groups"][0]["error_code"] not in (14, 15, 16))


def test_coordinators_are_found_the_same(on_both: Tell) -> None:
    def script(story: Story) -> Any:
        def found(version: int, **asked: Any) -> Any:
            answer = story.connection.ask(FindCoordinatorRequest(**asked), version)
            if version < 4:
                return answer.error_code, answer.node_id == story.side.node_id
            return [(each.key, each.error_code, each.node_id == story.side.node_id) for each in answer.coordinators]

        outcome = [found(version, key=story.group_id) for version in (0, 1, 2, 3)]
        return outcome + [found(4, coordinator_keys=keys) for keys in ([story.group_id], [], ["a", "b"], [""])]

    on_both(script)


# Offsets


@pytest.mark.parametrize("version", [2, 4, 5, 6, 7, 8, 9], ids="v{}".format)
def test_commits_of_every_kind(on_both: Tell, version: int) -> None:
    """Spec: C2. Metadata up to 4096 bytes, unknown topics and partitions, non-members."""

    def script(story: Story) -> Any:
        def commit(**how: Any) -> Any:
            return story.commit(version=version, **how)

        outcome = [commit(generation=0), commit(generation=5, member_id="x"), story.describe()]
        outcome += [commit(metadata=None), commit(metadata="m" * 4096), commit(metadata="m" * 4097)]
        outcome += [commit(metadata="ž" * 2048), commit(metadata="ž" * 2049), commit(metadata="ž" * 4096)]
        outcome += [commit(topic="no-such-topic"), commit(partition=7), commit(partition=-1), commit(offset=-1)]
        outcome += [commit(partition=1, offset=2**62), story.fetch_offsets(), story.listed(), story.describe()]
        if version <= 4:
            outcome += [commit(retention_time_ms=3_600_000), commit(retention_time_ms=0)]
        return outcome

    on_both(script)


@pytest.mark.parametrize("version", [1, 2, 5, 7, 8, 9], ids="v{}".format)
def test_fetching_committed_offsets(on_both: Tell, version: int) -> None:
    """Spec: C2. An offset that was never committed is -1."""

    def script(story: Story) -> Any:
        more = {"require_stable": True} if version >= 7 else {}
        outcome = [story.fetch_offsets(0, 7, version=version)]
        story.commit(0, 42, metadata="the answer")
        outcome += [story.fetch_offsets(0, 1, 7, version=version, **more)]
        if version >= 2:
            outcome += [story.fetch_offsets(version=version, **more)]
        return outcome

    on_both(script)


def test_deleting_offsets_and_groups(on_both: Tell) -> None:
    """OffsetDelete and DeleteGroups, with members and without."""

    def script(story: Story) -> Any:
        def delete_offsets(*partitions: int, topic: str = "") -> Any:
            parts = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=p) for p in partitions]
            named = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic or story.topic, partitions=parts)
            answer = story.ask(OffsetDeleteRequest(group_id=story.group_id, topics=[named]), 0)
            for answered in answer["topics"]:
                answered["partitions"].sort(key=lambda part: part["partition_index"])
            return answer

        outcome = [delete_offsets(0), story.delete(), story.delete(0), story.delete(1)]
        story.commit(0, 5)
        story.commit(1, 6)
        outcome += [delete_offsets(0, 7), delete_offsets(0, topic="no-such-topic"), story.fetch_offsets()]
        ann = story.member("ann")
        settle(ann, partitions=story.partitions)
        outcome += [delete_offsets(1), delete_offsets(1, topic="no-such-topic"), story.delete()]
        ann.leave()
        outcome += [delete_offsets(1), story.fetch_offsets(), story.delete(), story.delete(), story.describe()]
        return outcome

    on_both(script)


# What is stored


def stored(story: Story) -> list[tuple[Message, bytes, Message | None, bytes | None]]:
    """The group's records in `__consumer_offsets`: key and value, decoded and as bytes, oldest first."""
    index = partition_for(story.group_id, 50)
    part = FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 24)
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=1 << 24,
        topics=[FetchRequest.FetchTopic(topic="__consumer_offsets", partitions=[part])],
    )
    (topic,) = story.connection.ask(request, 11).responses
    (found,) = topic.partitions
    records = []
    for position, header in iter_batches(found.records):
        if header.is_control:
            continue
        for record in read_records(found.records, position, header):
            assert record.key is not None
            key = decode_record_key(KEYS, record.key)
            if key is None or getattr(key, "group", None) != story.group_id:
                continue
            value = None if record.value is None else decode_versioned(VALUES[key.api_key], record.value)
            records.append((key, record.key, value, record.value))
    return records


def canonical(story: Story, key: Message, key_bytes: bytes, value: Message | None, value_bytes: bytes | None) -> Any:
    """One record with its version. A decoded record must encode to the stored bytes, so that records that are equal
    here, apart from ids and times, are equal byte for byte."""
    assert encode_record_key(key) == key_bytes
    if value is None or value_bytes is None:
        return [story.normalized(key), None]
    (version,) = struct.unpack_from(">h", value_bytes)
    assert encode_versioned(value, version) == value_bytes
    if isinstance(value, OffsetCommitValue):
        assert value.commit_timestamp > 1_700_000_000_000
        value.commit_timestamp = 0
        value.expire_timestamp = -1 if value.expire_timestamp == -1 else 1
        value.topic_id = ZERO_UUID if value.topic_id == ZERO_UUID else b"the topic's own "
        assert len(value_bytes) == len(encode_versioned(value, version))
    else:
        assert isinstance(value, GroupMetadataValue)
        assert value.current_state_timestamp > 1_700_000_000_000
        value.current_state_timestamp = 0
        value.members.sort(key=lambda member: member.client_id)
    return [
        story.normalized(key),
        version,
        plain(story.normalized(value), hide=frozenset()),
        getattr(value, "topic_id", None),
    ]


def test_keys_and_values_are_stored_byte_for_byte(on_both: Tell) -> None:
    """Spec: B5, C3. What a group leaves in `__consumer_offsets`, in order, from its first join to its tombstones."""

    def script(story: Story) -> Any:
        ann, bob = story.member("ann"), story.member("bob", instance_id="desk")
        settle(ann, bob, partitions=story.partitions)
        ann.commit({story.partitions[0]: 5}, metadata="ŽLUŤ")
        ann.commit({story.partitions[0]: 6, story.partitions[1]: 7}, metadata=None)
        bob.commit({story.partitions[1]: 8}, metadata="m" * 200)
        back = story.member("bob", instance_id="desk")
        back.join()
        ann.leave()
        await_rebalance(back)
        back.join()
        hand_out(back, partitions=story.partitions)
        back.leave()
        story.commit(0, 9, version=4, retention_time_ms=3_600_000)
        story.commit(0, 9, version=2)
        story.delete()
        return [canonical(story, *record) for record in stored(story)]

    records = on_both(script)
    assert len(records) >= 12
    assert [record[1] for record in records[-3:]] == [None, None, None]


def test_a_simple_group_is_stored_the_same(on_both: Tell) -> None:
    def script(story: Story) -> Any:
        story.commit(0, 1)
        story.commit(0, 2, metadata="again")
        part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
        named = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=story.topic, partitions=[part])
        story.ask(OffsetDeleteRequest(group_id=story.group_id, topics=[named]), 0)
        return [canonical(story, *record) for record in stored(story)]

    on_both(script)


# Our own tools on both


def test_ottlas_admin_client_gets_the_same_results_from_both(same: Same, fresh_name: Callable[[], str]) -> None:
    from ottla import Admin, KafkaError

    name = fresh_name()

    def script(side: Side) -> Any:
        first, second = TopicPartition(side.topic, 0), TopicPartition(side.topic, 1)
        with Admin(bootstrap_servers=side.bootstrap) as admin:
            outcome: list[Any] = [admin.list_group_offsets(name)]
            offsets: dict[TopicPartition, int | CommittedOffset] = {first: CommittedOffset(3, 0, "noon"), second: 4}
            admin.alter_group_offsets(name, offsets)
            outcome.append(admin.list_group_offsets(name, require_stable=True))
            (group,) = admin.describe_groups([name])
            outcome.append((group.state, group.protocol_type, group.protocol, group.group_type, group.members))
            outcome.append([(g.state, g.group_type) for g in admin.list_groups(states=["empty"]) if g.group_id == name])
            admin.delete_group_offsets(name, [first])
            outcome.append(admin.list_group_offsets(name))
            with RawMember(side.bootstrap, name, [side.topic], client_id="ann", instance_id="desk") as ann:
                settle(ann, partitions=[first, second])
                (group,) = admin.describe_groups([name])
                (member,) = group.members
                outcome.append(
                    (group.state, group.protocol, member.subscription, member.assignment, member.client_host)
                )
                for mistake in (
                    lambda: admin.alter_group_offsets(name, {first: 1}),
                    lambda: admin.delete_group_offsets(name, [first]),
                    lambda: admin.delete_groups([name]),
                    lambda: admin.describe_groups(["no such group"]),
                    lambda: admin.remove_members(name, instance_ids=["nobody"]),
                ):
                    try:
                        mistake()
                        outcome.append("done")
                    except KafkaError as error:
                        outcome.append(error.code.name)
                admin.remove_members(name, instance_ids=["desk"])
            admin.delete_groups([name])
            outcome.append([g for g in admin.list_groups() if g.group_id == name])
        return [str(each) for each in outcome]

    same(script)


def test_group_records_of_apache_kafka_are_formatted(
    kafka: Any, sides: list[Side], fresh_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Spec: C5. The formatters read the records that Apache Kafka has stored."""
    from ottla import Admin
    from ottla.cli.main import main

    name, topic = fresh_name(), sides[1].topic
    partition = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=kafka.bootstrap) as admin:
        admin.alter_group_offsets(name, {partition: CommittedOffset(7, 0, "noon")})
        with RawMember(kafka.bootstrap, name, [topic], client_id="ann") as ann:
            settle(ann, partitions=[partition])
            ann.leave()
        admin.delete_groups([name])
    index = str(partition_for(name, 50))
    for formatter, start in (("offsets", f"[{name},{topic},0]::"), ("group-metadata", f"[{name}]::")):
        command = ["consume", "__consumer_offsets", "-p", index, "--formatter", formatter, "-e"]
        assert main([*command, "--bootstrap", kafka.bootstrap]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(start)]
        assert lines[-1] == f"{start}null"
        if formatter == "offsets":
            assert lines[0].startswith(f"{start}[OffsetMetadata[7,noon],CommitTime 1")
        else:
            assert any(f"[{ann.member_id},NO_INSTANCE_ID,ann,/127.0.0.1,[{partition}]]" in line for line in lines)
    assert main(["group", "history", name, "--bootstrap", kafka.bootstrap]) == 1
    assert "has no rebalance history" in capsys.readouterr().err
    assert main(["group", "list", "--bootstrap", kafka.bootstrap]) == 0


def test_a_group_of_the_new_protocol_is_described(
    kafka: Any, sides: list[Side], fresh_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-848 on Apache Kafka: Ottla's tools show the members and the stored records."""
    from confluent_kafka import Consumer

    from ottla import Admin
    from ottla.cli.main import main

    name, topic = fresh_name(), sides[1].topic
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": name,
            "group.protocol": "consumer",
            "client.id": "ann",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2)
        with Admin(bootstrap_servers=kafka.bootstrap) as admin:
            (group,) = admin.describe_groups([name])
            assert (group.group_type, group.protocol) == ("consumer", "uniform")
            (member,) = group.members
            assert (member.client_id, member.assignment) == (
                "ann",
                (TopicPartition(topic, 0), TopicPartition(topic, 1)),
            )
        index = str(partition_for(name, 50))
        command = ["consume", "__consumer_offsets", "-p", index, "--formatter", "group-metadata", "-e"]
        assert main([*command, "--bootstrap", kafka.bootstrap]) == 0
        shown = capsys.readouterr().out
        assert f"[{name}]::ConsumerGroupMetadata {{" in shown
        assert f"[{name},{member.member_id}]::ConsumerGroupMemberMetadata {{" in shown
    finally:
        consumer.close()
