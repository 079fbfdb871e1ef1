"""The admin's calls about groups, against a running broker."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla import Admin, AsyncAdmin, Broker, ErrorCode, KafkaError
from ottla.client.admin import requests
from ottla.client.core.model import CommittedOffset, Node
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.types import TopicPartition
from tests.support.waiting import eventually
from tests.support.wire.raw_group import RawMember, await_rebalance, settle


@pytest.fixture
def admin(broker: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"


@pytest.fixture
def partitions(admin: Admin, topic: str) -> list[TopicPartition]:
    admin.create_topic(topic, partitions=3)
    # Kafka's controller knows the topic first; a coordinator accepts no offsets for a topic that it does not know yet.
    eventually(lambda: topic in [known.name for known in admin.list_topics()])
    return [TopicPartition(topic, i) for i in range(3)]


def joining(bootstrap: str, group: str, topics: list[str], **how: Any) -> RawMember:
    """A member that is not removed, however long the machine stalls. It sends only the requests of the test."""
    return RawMember(bootstrap, group, topics, session_timeout_ms=120_000, rebalance_timeout_ms=120_000, **how)


def refused(code: ErrorCode) -> Any:
    return pytest.raises(KafkaError, match=code.name)


# Groups and their members


def test_a_group_is_listed_with_its_state_and_its_coordinator(
    admin: Admin, broker: Any, group: str, partitions: list[TopicPartition]
) -> None:
    with joining(broker.bootstrap, group, [partitions[0].topic]) as ann:
        settle(ann, partitions=partitions)
        (listed,) = [g for g in admin.list_groups() if g.group_id == group]
        assert (listed.state, listed.group_type, listed.protocol_type) == ("Stable", "classic", "consumer")
        assert listed.coordinator_id == admin.find_coordinators([group])[group].node_id
        assert group in [g.group_id for g in admin.list_groups(states=["stable"], types=["classic"])]
        assert group not in [g.group_id for g in admin.list_groups(states=["Empty"])]
        assert admin.list_groups(types=["share"]) == []


def test_members_are_described_with_subscription_and_assignment(
    admin: Admin, broker: Any, group: str, partitions: list[TopicPartition], topic: str
) -> None:
    bootstrap = broker.bootstrap
    with (
        joining(bootstrap, group, [topic], client_id="ann") as ann,
        joining(bootstrap, group, [topic], client_id="bob", instance_id="desk-2") as bob,
    ):
        settle(ann, bob, partitions=partitions)
        (described,) = admin.describe_groups([group])
        assert (described.state, described.protocol, described.group_type) == ("Stable", "range", "classic")
        assert described.coordinator == Node(
            described.coordinator.node_id, "127.0.0.1", int(bootstrap.rpartition(":")[2])
        )
        by_client = {member.client_id: member for member in described.members}
        assert by_client["ann"].member_id == ann.member_id
        assert by_client["ann"].assignment == (partitions[0], partitions[2])
        subscription = by_client["ann"].subscription
        assert subscription is not None
        assert subscription.topics == (topic,)
        assert by_client["bob"].group_instance_id == "desk-2"
        assert by_client["bob"].is_static
        assert by_client["bob"].host == "127.0.0.1"
        assert by_client["bob"].client_host == "/127.0.0.1"
        assert described.owners[partitions[1]].member_id == bob.member_id


def test_during_a_rebalance_a_member_keeps_its_old_assignment(
    admin: Admin, broker: Any, group: str, partitions: list[TopicPartition], topic: str
) -> None:
    """As in Apache Kafka: subscriptions are shown only for a stable group, assignments always."""
    bootstrap = broker.bootstrap
    with (
        joining(bootstrap, group, [topic], client_id="ann") as ann,
        joining(bootstrap, group, [topic], client_id="bob", instance_id="desk-2") as bob,
    ):
        settle(ann, partitions=partitions)
        bob.post_join()
        await_rebalance(ann)
        (described,) = admin.describe_groups([group])
        by_client = {member.client_id: member for member in described.members}
        assert (described.state, described.protocol) == ("PreparingRebalance", "")
        assert by_client["ann"].assignment == tuple(partitions)
        assert by_client["ann"].subscription is None
        assert by_client["bob"].assignment == ()


def test_a_missing_group_is_an_error_and_the_others_keep_their_order(
    admin: Admin, group: str, partitions: list[TopicPartition]
) -> None:
    for name in (f"{group}-b", f"{group}-a"):
        admin.alter_group_offsets(name, {partitions[0]: 1})
    described = admin.describe_groups([f"{group}-b", f"{group}-a"])
    assert [(g.group_id, g.state, g.members) for g in described] == [
        (f"{group}-b", "Empty", ()),
        (f"{group}-a", "Empty", ()),
    ]
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        admin.describe_groups([f"{group}-a", "no-such-group"])


def test_the_empty_group_id_is_not_found_before_it_has_offsets() -> None:
    # On a broker of its own: other tests commit offsets for the empty group id.
    with (
        Broker.embedded() as fresh,
        Admin(bootstrap_servers=fresh.bootstrap) as admin,
        refused(ErrorCode.GROUP_ID_NOT_FOUND),
    ):
        admin.describe_groups([""])


def test_removing_a_static_member_by_its_instance_id(
    admin: Admin, broker: Any, group: str, partitions: list[TopicPartition], topic: str
) -> None:
    """LeaveGroup with an instance id and no member id is a removal by an administrator (KIP-345)."""
    with joining(broker.bootstrap, group, [topic], instance_id="desk-1") as ann:
        settle(ann, partitions=partitions)
        with refused(ErrorCode.UNKNOWN_MEMBER_ID):
            admin.remove_members(group, instance_ids=["desk-9"])
        admin.remove_members(group, instance_ids=["desk-1"])
        assert admin.describe_groups([group])[0].members == ()
        assert ann.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_removing_all_members_or_one_of_two(
    admin: Admin, broker: Any, group: str, partitions: list[TopicPartition], topic: str
) -> None:
    bootstrap = broker.bootstrap
    with joining(bootstrap, group, [topic]) as ann, joining(bootstrap, group, [topic], instance_id="b") as bob:
        settle(ann, bob, partitions=partitions)
        admin.remove_members(group, member_ids=[ann.member_id])
        assert [m.member_id for m in admin.describe_groups([group])[0].members] == [bob.member_id]
        admin.remove_members(group)
        assert admin.describe_groups([group])[0].state == "Empty"
        admin.remove_members(group)  # without members it does nothing


# Offsets


def test_offsets_are_committed_read_and_deleted(admin: Admin, group: str, partitions: list[TopicPartition]) -> None:
    """Spec: C2. With their metadata."""
    first, second, third = partitions
    assert admin.list_group_offsets(group) == {}
    offsets: dict[TopicPartition, int | CommittedOffset] = {second: 7, first: CommittedOffset(3, 0, "žluť")}
    admin.alter_group_offsets(group, offsets)
    assert admin.list_group_offsets(group) == {
        first: CommittedOffset(3, 0, "žluť"),
        second: CommittedOffset(7, -1, ""),
    }
    assert admin.list_group_offsets(group, [second, third], require_stable=True) == {second: CommittedOffset(7)}
    admin.delete_group_offsets(group, [first])
    assert admin.list_group_offsets(group).keys() == {second}
    admin.alter_group_offsets(group, {})


def test_metadata_is_measured_in_javas_characters_not_bytes(
    admin: Admin, group: str, partitions: list[TopicPartition]
) -> None:
    """Spec: C2. As Apache Kafka reads `offset.metadata.max.bytes`."""
    admin.alter_group_offsets(group, {partitions[0]: CommittedOffset(1, -1, "ž" * 4096)})
    admin.alter_group_offsets(group, {partitions[1]: CommittedOffset(1, -1, "\N{CAT}" * 2048)})
    assert admin.list_group_offsets(group)[partitions[1]].metadata == "\N{CAT}" * 2048
    for metadata in ("ž" * 4097, "\N{CAT}" * 2049):
        with refused(ErrorCode.OFFSET_METADATA_TOO_LARGE):
            admin.alter_group_offsets(group, {partitions[0]: CommittedOffset(1, -1, metadata)})


def test_a_coordinators_error_is_raised_with_its_code(
    admin: Admin, broker: Any, group: str, partitions: list[TopicPartition], topic: str
) -> None:
    with joining(broker.bootstrap, group, [topic]) as ann:
        settle(ann, partitions=partitions)
        mistakes: list[tuple[Callable[[], None], ErrorCode]] = [
            (lambda: admin.alter_group_offsets(group, {partitions[0]: 1}), ErrorCode.UNKNOWN_MEMBER_ID),
            (lambda: admin.delete_group_offsets(group, partitions), ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
            (lambda: admin.delete_groups([group]), ErrorCode.NON_EMPTY_GROUP),
            (lambda: admin.delete_groups(["no-such-group"]), ErrorCode.GROUP_ID_NOT_FOUND),
            (lambda: admin.delete_group_offsets("no-such-group", partitions), ErrorCode.GROUP_ID_NOT_FOUND),
            (lambda: admin.remove_members(group, member_ids=["nobody"]), ErrorCode.UNKNOWN_MEMBER_ID),
            (
                lambda: admin.alter_group_offsets(f"{group}-2", {partitions[0]: CommittedOffset(1, -1, "x" * 5000)}),
                ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ),
            (
                lambda: admin.alter_group_offsets(f"{group}-2", {TopicPartition("no-such-topic", 0): 1}),
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ),
        ]
        for mistake, code in mistakes:
            with refused(code):
                mistake()
        assert ann.heartbeat() == ErrorCode.NONE  # none of it disturbed the group


def test_deleting_several_groups_deletes_those_it_can(
    admin: Admin, broker: Any, group: str, partitions: list[TopicPartition], topic: str
) -> None:
    names = [f"{group}-{i}" for i in range(3)]
    for name in names:
        admin.alter_group_offsets(name, {partitions[0]: 1})
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        admin.delete_groups([names[0], "no-such-group", names[1]])
    left = [g.group_id for g in admin.list_groups() if g.group_id in names]
    assert left == [names[2]]
    assert admin.list_group_offsets(names[0]) == {}


# Coordinators that move


def test_a_coordinator_that_moves_or_loads_is_looked_up_again(
    broker: Any, group: str, partitions: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries on COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR."""
    errors = [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ]
    real = requests.ask
    lookups = 0

    async def failing(*arguments: Any) -> Any:
        nonlocal lookups
        response = await real(*arguments)
        if isinstance(response, FindCoordinatorResponse):
            lookups += 1
            if errors and errors[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                response.coordinators[0].error_code = errors.pop(0)
        elif errors:
            response.groups[0].error_code = errors.pop(0)
        return response

    monkeypatch.setattr(requests, "ask", failing)
    with Admin(bootstrap_servers=broker.bootstrap, retry_backoff_ms=1) as admin:
        assert admin.list_group_offsets(group, partitions) == {}
    assert not errors
    assert lookups >= 4


def test_old_brokers_that_find_one_coordinator_at_a_time_are_supported(
    broker: Any, group: str, partitions: list[TopicPartition]
) -> None:
    """FindCoordinator below version 4 takes one key; OffsetFetch below 8 takes one group."""

    async def story() -> None:
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
            await admin.alter_group_offsets(group, {partitions[0]: 5})
            network = admin._network  # noqa: SLF001 - to speak the protocol versions of an old broker
            real = network.request

            async def as_of_old(api_key: int, build: Any, **how: Any) -> Any:
                how["max_version"] = {10: 3, 9: 7, 15: 4}.get(api_key, how.get("max_version"))
                return await real(api_key, build, **how)

            network.request = as_of_old  # type: ignore[method-assign]
            found = await admin.find_coordinators([group, f"{group}-2"])
            assert found.keys() == {group, f"{group}-2"}
            assert await admin.list_group_offsets(group) == {partitions[0]: CommittedOffset(5)}
            assert await admin.list_group_offsets(group, partitions) == {partitions[0]: CommittedOffset(5)}
            assert (await admin.describe_groups([group]))[0].state == "Empty"
            with refused(ErrorCode.GROUP_ID_NOT_FOUND):  # the broker returned it as Dead
                await admin.describe_groups(["no-such-group"])

    asyncio.run(story())
