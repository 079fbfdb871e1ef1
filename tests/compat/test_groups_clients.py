"""Consumers of other clients in groups: alone, mixed, static, cooperative, and across a restart of the broker.

Spec: B4, B5, B6, C1, C2, R5.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla import Admin, Broker, Producer
from ottla.client.core.model import CommittedOffset
from ottla.types import TopicPartition
from tests.support.clients.members import MEMBERS, ConfluentMember, Event, JavaMember, Member, await_true
from tests.support.waiting import PATIENCE_S, eventually

QUICK = {"group.initial.rebalance.delay.ms": 0}
SESSION_MS = 60_000
"""Long enough that no member times out on a busy machine."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [getattr(pytest.mark, name)] if name in ("java", "kcat") else []


EACH = pytest.mark.parametrize("kind", [pytest.param(name, marks=_marks(name)) for name in MEMBERS])


@pytest.fixture(scope="module", autouse=True)
def _close_java() -> Iterator[None]:
    yield
    JavaMember.close_client()


@pytest.fixture
def admin(ottla: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=ottla.bootstrap) as client:
        yield client


@pytest.fixture
def group(topic: str) -> str:
    return f"g-{topic}"


@pytest.fixture
def run(ottla: Any, group: str) -> Iterator[Callable[..., Member]]:
    """Starts members, and stops them at the end."""
    started: list[Member] = []

    def start(kind: str | type[Member], topic: str, **more: Any) -> Member:
        member_class = MEMBERS[kind] if isinstance(kind, str) else kind
        reason = member_class.unavailable()
        if reason is not None:
            pytest.skip(reason)
        more.setdefault("session_timeout_ms", SESSION_MS)
        member = member_class(more.pop("bootstrap", ottla.bootstrap), more.pop("group", group), [topic], **more)
        started.append(member)
        return member.start()

    with contextlib.ExitStack() as stack:  # stops all of them, even if one fails
        yield start
        for member in started:
            if not member.is_stopped:
                stack.callback(member.stop)


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, i) for i in range(count)]


def produce(bootstrap: str, partitions: list[TopicPartition], each: int, start: int = 0) -> set[bytes]:
    values = set()
    with Producer(bootstrap_servers=bootstrap) as producer:
        for partition in partitions:
            for i in range(start, start + each):
                value = f"{partition.partition}-{i}".encode()
                producer.send(partition.topic, value, partition=partition.partition)
                values.add(value)
    return values


def read_by(*members: Member) -> set[bytes]:
    return {read.value for member in members for read in member.received}


def shared(members: list[Member], partitions: list[TopicPartition], each: int | None = None) -> bool:
    """Whether every partition has exactly one owner, and each member has `each` partitions (if set)."""
    owned = sorted(partition for member in members for partition in member.assignment)
    return owned == sorted(partitions) and (each is None or all(len(m.assignment) == each for m in members))


def is_committed(admin: Admin, group: str, offsets: dict[TopicPartition, int]) -> bool:
    return {p: committed.offset for p, committed in admin.list_group_offsets(group).items()} == offsets


# Each client


@EACH
def test_two_members_share_the_partitions_and_the_remaining_one_takes_over(
    ottla: Any, admin: Admin, group: str, topic: str, run: Any, kind: str
) -> None:
    """Spec: B4, B6. A member joins, a member leaves; every record is read and committed."""
    admin.create_topic(topic, partitions=4)
    partitions = partitions_of(topic, 4)
    sent = produce(ottla.bootstrap, partitions, 10)
    first = run(kind, topic, client_id=f"{kind}-1")
    await_true("the first has all", lambda: shared([first], partitions), [first])
    await_true("all is read", lambda: read_by(first) == sent, [first])
    second = run(kind, topic, client_id=f"{kind}-2")
    both = [first, second]
    await_true("they share", lambda: shared(both, partitions, 2), both)
    sent |= produce(ottla.bootstrap, partitions, 10, 10)
    await_true("both read", lambda: read_by(*both) == sent, both)
    (described,) = admin.describe_groups([group])
    assert (described.state, described.protocol) == ("Stable", "range")
    assert {member.client_id: set(member.assignment) for member in described.members} == {
        member.client_id: member.assignment for member in both
    }
    first.stop()
    await_true("the second has all", lambda: shared([second], partitions), [second])
    sent |= produce(ottla.bootstrap, partitions, 10, 20)
    await_true("the second reads on", lambda: read_by(*both) == sent, [second])
    second.stop()
    await_true("all is committed", lambda: is_committed(admin, group, dict.fromkeys(partitions, 30)))
    await_true("no member is left", lambda: admin.describe_groups([group])[0].state == "Empty")


def test_all_clients_work_in_one_group(ottla: Any, admin: Admin, group: str, topic: str, run: Any) -> None:
    """Five libraries with the range assignor: any of them can lead, and the group goes on when each of them leaves."""
    kinds = [name for name, member in MEMBERS.items() if member.unavailable() is None]
    count = 2 * len(kinds)
    admin.create_topic(topic, partitions=count)
    partitions = partitions_of(topic, count)
    members = []
    for kind in kinds:
        members.append(run(kind, topic))
        await_true(f"{kind} has a part", lambda: shared(members, partitions) and bool(members[-1].assignment), members)
    await_true("all have the same", lambda: shared(members, partitions, 2), members)
    sent = produce(ottla.bootstrap, partitions, 5)
    await_true("all is read", lambda: read_by(*members) == sent, members)
    leader_first = sorted(members, key=lambda member: member.client_id != kinds[0])
    gone: list[Member] = []
    while len(leader_first) > 1:
        leaving = leader_first.pop(0)
        leaving.stop()
        gone.append(leaving)
        await_true(f"{leaving.client_id}'s part is taken", lambda: shared(leader_first, partitions), leader_first)
    sent |= produce(ottla.bootstrap, partitions, 5, 5)
    await_true("the last reads on", lambda: read_by(*members) == sent, leader_first)


# Static members


def test_a_static_member_restarted_within_its_session_causes_no_rebalance(
    ottla: Any, admin: Admin, group: str, topic: str, run: Any
) -> None:
    """Spec: R5. KIP-345: no partition is revoked, and the member gets its partitions back."""
    admin.create_topic(topic, partitions=4)
    partitions = partitions_of(topic, 4)
    how = {"session_timeout_ms": 300_000}
    ann = run("confluent-kafka", topic, client_id="ann", instance_id="desk-1", **how)
    bob = run("confluent-kafka", topic, client_id="bob", instance_id="desk-2", **how)
    await_true("they share", lambda: shared([ann, bob], partitions, 2), [ann, bob])
    events, had = list(ann.events), set(bob.assignment)
    before = {member.group_instance_id: member.member_id for member in admin.describe_groups([group])[0].members}
    bob.stop()
    assert len(admin.describe_groups([group])[0].members) == 2  # closing does not leave
    back = run("confluent-kafka", topic, client_id="bob", instance_id="desk-2", **how)
    await_true("bob has it again", lambda: back.assignment == had, [ann, back])
    sent = produce(ottla.bootstrap, partitions, 5)
    await_true("both read", lambda: read_by(ann, back) == sent, [ann, back])
    after = {member.group_instance_id: member.member_id for member in admin.describe_groups([group])[0].members}
    assert ann.events == events
    assert after["desk-1"] == before["desk-1"]
    assert after["desk-2"] != before["desk-2"]


def test_a_second_member_with_the_same_instance_id_fences_the_first(
    ottla: Any, admin: Admin, group: str, topic: str, run: Any
) -> None:
    """Spec: R5. The old member fails with a fencing error."""
    from confluent_kafka import Consumer, KafkaError, KafkaException

    admin.create_topic(topic, partitions=2)
    settings = {
        "bootstrap.servers": ottla.bootstrap,
        "group.id": group,
        "group.instance.id": "desk-1",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 200,
        "log_level": 0,
    }
    old = Consumer(settings)
    old.subscribe([topic])
    eventually(lambda: old.poll(0.05) is None and len(old.assignment()) == 2)
    new = run("confluent-kafka", topic, instance_id="desk-1")
    await_true("the newcomer has all", lambda: shared([new], partitions_of(topic, 2)), [new])

    def is_fenced() -> bool:
        try:
            message = old.poll(0.1)
            error = message.error() if message is not None else None
        except KafkaException as refused:
            error = refused.args[0]
        return error is not None and error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)

    eventually(is_fenced)
    old.close()
    assert len(admin.describe_groups([group])[0].members) == 1


# Cooperative rebalancing


@pytest.mark.parametrize("kind", ["confluent-kafka", pytest.param("java", marks=pytest.mark.java)])
def test_cooperative_members_revoke_only_partitions_that_move(
    ottla: Any, admin: Admin, group: str, topic: str, run: Any, kind: str
) -> None:
    """KIP-429: the first member keeps reading half of its partitions while the second joins."""
    admin.create_topic(topic, partitions=4)
    partitions = partitions_of(topic, 4)
    first = run(kind, topic, client_id="first", assignor="cooperative-sticky")
    await_true("the first has all", lambda: shared([first], partitions), [first])
    second = run(kind, topic, client_id="second", assignor="cooperative-sticky")
    both = [first, second]
    await_true("they share", lambda: shared(both, partitions, 2), both)
    revoked = [event.partitions for event in first.events if event.what == "revoked" and event.partitions]
    assert revoked == [tuple(sorted(second.assignment))]
    sent = produce(ottla.bootstrap, partitions, 5)
    await_true("both read", lambda: read_by(*both) == sent, both)
    kept = set(first.assignment)
    second.stop()
    await_true("the first has all again", lambda: shared([first], partitions), [first])
    changes = [event for event in first.events if event.partitions]
    assert changes[-1] == Event("assigned", tuple(sorted(set(partitions) - kept)))


# The broker restarts


@pytest.mark.parametrize("how_it_ends", ["killed", "stopped"])
def test_commits_and_members_survive_a_broker_restart(topic: str, group: str, run: Any, how_it_ends: str) -> None:
    """Spec: R5, C2. Commits survive kill -9; members that reconnect within their session see no rebalance."""
    with Broker.embedded(settings=QUICK) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=4)
            partitions = partitions_of(topic, 4)
            sent = produce(broker.bootstrap, partitions, 10)
            how = {"bootstrap": broker.bootstrap, "session_timeout_ms": 300_000}
            members = [run("confluent-kafka", topic, client_id=name, **how) for name in ("ann", "bob")]
            await_true("they share", lambda: shared(members, partitions, 2), members)
            await_true("all is read", lambda: read_by(*members) == sent, members)
            await_true("all is committed", lambda: is_committed(admin, group, dict.fromkeys(partitions, 10)))
            admin.alter_group_offsets(f"{group}-idle", {partitions[0]: CommittedOffset(7, 0, "noon")})
            before = admin.describe_groups([group])[0]
            events = [list(member.events) for member in members]
        if how_it_ends == "killed":
            broker.kill()
        broker.restart()
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            assert is_committed(admin, group, dict.fromkeys(partitions, 10))
            assert admin.list_group_offsets(f"{group}-idle") == {partitions[0]: CommittedOffset(7, 0, "noon")}
            sent |= produce(broker.bootstrap, partitions, 10, 10)
            await_true("they read on", lambda: read_by(*members) == sent, members)
            after = admin.describe_groups([group])[0]
            assert (after.state, after.members) == (before.state, before.members)
            assert [member.events for member in members] == events
            assert sum(len(member.received) for member in members) == len(sent)  # nothing was read twice
            for member in members:
                member.stop()
            await_true("all is committed", lambda: is_committed(admin, group, dict.fromkeys(partitions, 20)))


# Metadata


def test_every_client_reads_committed_metadata(ottla: Any, admin: Admin, group: str, topic: str) -> None:
    """Spec: C2, R4. Each library reads what the others commit."""
    admin.create_topic(topic, partitions=4)
    noted = "zřejmě {json: 1} \N{CAT}"

    def by_confluent() -> None:
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as Place

        settings = {"bootstrap.servers": ottla.bootstrap, "group.id": group, "enable.auto.commit": False}
        consumer = Consumer(settings)
        consumer.commit(offsets=[Place(topic, 0, 11, metadata=noted)], asynchronous=False)
        (committed,) = consumer.committed([Place(topic, 0)], timeout=PATIENCE_S)
        consumer.close()
        assert (committed.offset, committed.metadata) == (11, noted)

    def by_kafka_python() -> None:
        from kafka import KafkaConsumer
        from kafka import TopicPartition as Place
        from kafka.structs import OffsetAndMetadata

        consumer = KafkaConsumer(bootstrap_servers=ottla.bootstrap, group_id=group, enable_auto_commit=False)
        place = Place(topic, 1)
        consumer.assign([place])
        consumer.commit({place: OffsetAndMetadata(12, noted, -1)})
        assert consumer.committed(place, metadata=True).metadata == noted
        consumer.close()

    by_confluent()
    by_kafka_python()
    expected = {TopicPartition(topic, 0): 11, TopicPartition(topic, 1): 12}
    if JavaMember.unavailable() is None:
        config = {"group.id": group, "enable.auto.commit": False}
        found = JavaMember.client().call(
            "group_commit", ottla.bootstrap, topic=topic, partition=2, offset=13, metadata=noted, config=config
        )
        assert found == {"offset": 13, "metadata": noted}
        expected[TopicPartition(topic, 2)] = 13
    admin.alter_group_offsets(group, {TopicPartition(topic, 3): CommittedOffset(14, -1, noted)})
    committed = admin.list_group_offsets(group)
    assert {p: c.offset for p, c in committed.items()} == {**expected, TopicPartition(topic, 3): 14}
    # confluent-kafka stores the zero that ends a string in C along with it, and removes it when it reads.
    assert {c.metadata.removesuffix("\0") for c in committed.values()} == {noted}


# Chains


CHAINS = [
    ("confluent-kafka", "range"),
    ("confluent-kafka", "roundrobin"),
    ("confluent-kafka", "cooperative-sticky"),
    ("aiokafka", "sticky"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "assignor"), CHAINS, ids=[assignor for _, assignor in CHAINS])
def test_chains_of_groups_copy_everything_while_members_come_and_go(
    ottla: Any, admin: Admin, topic: str, run: Any, kind: str, assignor: str
) -> None:
    """Spec: R5. Each member copies, then commits, so nothing is lost when members leave."""
    stages = [f"{topic}-{i}" for i in range(3)]
    for name in stages:
        admin.create_topic(name, partitions=3)
    chance = random.Random(f"{kind}/{assignor}")
    with Producer(bootstrap_servers=ottla.bootstrap, linger_ms=0) as producer:

        def copier(stage: int, number: int) -> Member:
            def copy(read: Any) -> None:
                target = stages[stage + 1]
                producer.send_and_wait(target, read.value, partition=read.partition.partition)

            name = f"copier-{stage}-{number}"
            group = f"{topic}-group-{stage}"
            member: Member = run(kind, stages[stage], group=group, client_id=name, assignor=assignor, on_record=copy)
            return member

        running = [[copier(stage, i) for i in range(2)] for stage in range(2)]
        everyone = [member for members in running for member in members]
        sent: set[bytes] = set()
        for turn in range(4):
            sent |= produce(ottla.bootstrap, partitions_of(stages[0], 3), 20, 20 * turn)
            stage = turn % 2
            if len(running[stage]) > 1 and chance.random() < 0.6:
                running[stage].pop(chance.randrange(len(running[stage]))).stop()
            else:
                running[stage].append(copier(stage, 10 + turn))
                everyone.append(running[stage][-1])
            time.sleep(chance.uniform(0.1, 0.6))  # so that members come and go during the work
        last = run(ConfluentMember, stages[2], group=f"{topic}-last", client_id="last")
        await_true("everything has come through", lambda: read_by(last) == sent, [*everyone, last], 60)
        for members in running:
            for member in members:
                member.stop()
