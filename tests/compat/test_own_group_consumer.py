"""Ottla's group consumer against Ottla and against Apache Kafka, alone and in one group with librdkafka."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla import Admin, AsyncConsumer, Consumer, ErrorCode, KafkaError, OttlaError, Producer
from ottla.client.consumer.consumer import WakeupError
from ottla.client.core.model import CommittedOffset
from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.clock import monotonic
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S, stretched

QUICK = {"session.timeout.ms": 60_000, "heartbeat.interval.ms": 200, "auto.offset.reset": "earliest"}
STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


@pytest.fixture
def admin(broker: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def filled(admin: Admin, broker: Any, topic: str) -> str:
    """A topic of four partitions with 25 records each."""
    admin.create_topic(topic, partitions=4)
    write(broker, topic, range(100))
    return topic


def write(broker: Any, topic: str, numbers: range, partitions: int = 4) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, f"{number}", partition=number % partitions)


def consumer(broker: Any, group: str, **settings: Any) -> Consumer:
    return Consumer(QUICK, bootstrap_servers=broker.bootstrap, group_id=group, **settings)


def read(reader: Consumer, count: int, patience_s: float = PATIENCE_S) -> list[int]:
    deadline = monotonic() + patience_s
    found: list[int] = []
    while len(found) < count:
        assert monotonic() < deadline, f"{len(found)} of {count} records came"
        found += [int(record.value or b"") for record in reader.poll(200)]
    return found


def drive(readers: list[Consumer], holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> list[int]:
    """Polls several consumers in turn until a condition holds."""
    deadline = monotonic() + patience_s
    found: list[int] = []
    while not holds():
        assert monotonic() < deadline, [sorted(reader.assignment()) for reader in readers]
        for reader in readers:
            found += [int(record.value or b"") for record in reader.poll(30)]
    return found


class Diary(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("revoked", [p.partition for p in partitions]))

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("assigned", [p.partition for p in partitions]))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("lost", [p.partition for p in partitions]))


def test_committed_positions_survive_in_the_group(broker: Any, filled: str, admin: Admin) -> None:
    """Spec: B7. Auto-commit on close, then OffsetFetch."""
    with consumer(broker, filled) as first:
        first.subscribe([filled])
        assert sorted(read(first, 100)) == list(range(100))
    assert {p.partition: c.offset for p, c in admin.list_group_offsets(filled).items()} == dict.fromkeys(range(4), 25)
    write(broker, filled, range(100, 108))
    with consumer(broker, filled) as second:
        second.subscribe([filled])
        assert sorted(read(second, 8)) == list(range(100, 108))
    (group,) = admin.describe_groups([filled])
    assert group.state == "Empty", "both have left the group"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_members_share_and_the_one_that_stays_takes_over(
    broker: Any, filled: str, strategy: str, admin: Admin
) -> None:
    """Spec: A5, A9."""
    diaries = [Diary(), Diary()]
    with consumer(broker, filled, partition_assignment_strategy=strategy) as one:
        one.subscribe([filled], listener=diaries[0])
        found = read(one, 100)
        with consumer(broker, filled, partition_assignment_strategy=strategy) as two:
            two.subscribe([filled], listener=diaries[1])
            found += drive([one, two], lambda: len(one.assignment()) == len(two.assignment()) == 2)
            write(broker, filled, range(100, 120))
            found += drive([one, two], lambda: sum(c.position(p) for c in (one, two) for p in c.assignment()) == 120)
            (group,) = admin.describe_groups([filled])
            assert group.protocol == strategy
            assert len(group.members) == 2
        found += drive([one], lambda: len(one.assignment()) == 4)
    revoked = [partitions for what, partitions in diaries[0].events if what == "revoked"]
    assert len(revoked[0]) == (2 if strategy == "cooperative-sticky" else 4), (
        "cooperative: only the partitions that move; eager: all"
    )
    assert sorted(found) == list(range(120)), "every record must be read once"


def test_commits_by_hand(broker: Any, filled: str) -> None:
    with consumer(broker, filled, enable_auto_commit=False) as reader:
        reader.subscribe([filled])
        read(reader, 100)
        partitions = [TopicPartition(filled, i) for i in range(4)]
        assert reader.committed(partitions) == dict.fromkeys(partitions)
        offsets: dict[tuple[str, int], int | CommittedOffset] = {
            (filled, 0): 7,
            (filled, 1): CommittedOffset(9, metadata="why"),
        }
        reader.commit(offsets)
        done: list[Any] = []
        reader.commit_async({(filled, 2): 11}, callback=lambda offsets, error: done.append((offsets, error)))
        reader.commit({(filled, 3): 13})
        found = reader.committed(partitions)
        assert [c.offset if c else None for c in found.values()] == [7, 9, 11, 13]
        assert found[partitions[1]] == CommittedOffset(9, metadata="why")
        ((stored, error),) = done
        assert error is None
        assert stored[partitions[2]].offset == 11
        assert stored[partitions[2]].leader_epoch >= 0, "the epoch of the record before it, which was read here"
        reader.commit()
        assert [c.offset for c in reader.committed(partitions).values() if c] == [25] * 4
        with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
            reader.commit({(filled, 0): CommittedOffset(1, metadata="x" * 5_000)})


def test_the_iterator_commits_only_what_it_gave_out(broker: Any, filled: str) -> None:
    with consumer(broker, filled, enable_auto_commit=False) as reader:
        reader.subscribe([filled])
        for number, _record in enumerate(reader):
            if number == 9:
                break
        reader.commit()
        committed = reader.committed([(filled, i) for i in range(4)])
        assert sum(c.offset for c in committed.values() if c) == 10
        assert len(read(reader, 90)) == 90, "poll() returns the records that the iteration left"


def test_a_listener_may_use_its_consumer(broker: Any, filled: str) -> None:
    """Seek on assignment, commit on revocation, from the thread that polls."""
    threads = []

    class Seeking(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            threads.append(threading.current_thread())
            for partition in partitions:
                reader.seek(partition, 20)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            threads.append(threading.current_thread())
            reader.commit()

    with consumer(broker, filled, enable_auto_commit=False) as reader:
        reader.subscribe([filled], listener=Seeking())
        assert len(read(reader, 20)) == 20
        reader.unsubscribe()
        assert [c.offset for c in reader.committed([(filled, i) for i in range(4)]).values() if c] == [25] * 4
    assert set(threads) == {threading.current_thread()}
    assert len(threads) == 2


def test_a_pattern_finds_topics_that_come_later(broker: Any, admin: Admin, topic: str) -> None:
    """Spec: B6."""
    admin.create_topic(f"{topic}-a", partitions=1)
    with consumer(broker, topic, metadata_max_age_ms=300) as reader:
        reader.subscribe(pattern=re.compile(re.escape(topic) + "-.*"))
        drive([reader], lambda: len(reader.assignment()) == 1)
        admin.create_topic(f"{topic}-b", partitions=2)
        admin.create_topic(f"x-{topic}-c", partitions=1)
        write(broker, f"{topic}-b", range(4), partitions=2)
        assert sorted(read(reader, 4)) == [0, 1, 2, 3]
        assert reader.subscription() == {f"{topic}-a", f"{topic}-b"}


def test_new_partitions_are_shared_out(broker: Any, filled: str, admin: Admin) -> None:
    """Spec: B6."""
    with consumer(broker, filled, metadata_max_age_ms=300) as reader:
        reader.subscribe([filled])
        read(reader, 100)
        admin.create_partitions({filled: 6})
        drive([reader], lambda: len(reader.assignment()) == 6)


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    broker: Any, filled: str, admin: Admin
) -> None:
    with consumer(broker, filled) as other:
        other.subscribe([filled])
        with consumer(broker, filled, group_instance_id="one") as member:
            member.subscribe([filled])
            drive([other, member], lambda: len(other.assignment()) == len(member.assignment()) == 2)
            had, generation = member.assignment(), other.group_metadata().generation_id
        (group,) = admin.describe_groups([filled])
        assert len(group.members) == 2, "a static member does not leave when it closes"
        with consumer(broker, filled, group_instance_id="one") as member:
            member.subscribe([filled])
            drive([other, member], lambda: member.assignment() == had)
            assert other.group_metadata().generation_id == generation


def test_a_second_member_under_the_same_instance_id_fences_the_first(broker: Any, filled: str) -> None:
    with consumer(broker, filled, group_instance_id="one") as old:
        old.subscribe([filled])
        drive([old], lambda: len(old.assignment()) == 4)
        with consumer(broker, filled, group_instance_id="one") as new:
            new.subscribe([filled])
            with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
                drive([new, old], lambda: False)


def test_a_member_that_does_not_poll_is_removed_and_comes_back(broker: Any, filled: str) -> None:
    """Spec: B6. `max.poll.interval.ms` is exceeded."""
    diary = Diary()
    with consumer(broker, filled, max_poll_interval_ms=stretched(600), enable_auto_commit=False) as slow:
        slow.subscribe([filled], listener=diary)
        read(slow, 100)
        with consumer(broker, filled) as quick:
            quick.subscribe([filled])
            drive([quick], lambda: len(quick.assignment()) == 4)
            with pytest.raises(KafkaError) as refused:
                slow.commit()
            assert refused.value.code == ErrorCode.UNKNOWN_MEMBER_ID
            drive([slow, quick], lambda: len(slow.assignment()) == 2)
    assert ("lost", [0, 1, 2, 3]) in diary.events


def test_the_kinds_of_subscription_exclude_each_other(broker: Any, filled: str) -> None:
    """Spec: B9."""
    with consumer(broker, filled) as reader:
        for topics, message in [
            (None, "cannot be None"),
            ([""], "None or blank"),
            ([" "], "None or blank"),
            ([None], "None or blank"),
            (filled, "must be a list"),
        ]:
            with pytest.raises(OttlaError, match=message):
                reader.subscribe(topics)  # type: ignore[arg-type]
        with pytest.raises(OttlaError, match="not subscribed to any topics or assigned any partitions"):
            reader.poll(0)
        reader.subscribe([filled])
        with pytest.raises(OttlaError, match="mutually exclusive"):
            reader.assign([(filled, 0)])
        with pytest.raises(OttlaError, match="mutually exclusive"):
            reader.subscribe(pattern="x.*")
        reader.subscribe([])
        assert reader.subscription() == set()
        assert reader.assignment() == set()
        reader.assign([(filled, 0)])
        with pytest.raises(OttlaError, match="mutually exclusive"):
            reader.subscribe([filled])
        assert len(read(reader, 25)) == 25
        reader.commit()
        assert [c.offset for c in reader.committed([(filled, 0)]).values() if c] == [25]
    with Consumer(bootstrap_servers=broker.bootstrap) as alone, pytest.raises(OttlaError, match=r"valid group\.id"):
        alone.subscribe([filled])


def test_wakeup_breaks_off_a_poll_that_waits_for_the_group(broker: Any, topic: str, admin: Admin) -> None:
    admin.create_topic(topic, partitions=1)
    with consumer(broker, topic) as reader:
        reader.subscribe([topic])
        drive([reader], lambda: len(reader.assignment()) == 1)
        threading.Timer(0.2, reader.wakeup).start()
        with pytest.raises(WakeupError):
            reader.poll(300_000)


def test_no_offset_and_no_reset_is_the_users_to_decide(broker: Any, filled: str) -> None:
    settings = {**QUICK, "auto.offset.reset": "none"}
    with Consumer(settings, bootstrap_servers=broker.bootstrap, group_id=f"{filled}-none") as reader:
        reader.subscribe([filled])
        with pytest.raises(OttlaError, match=r"auto\.offset\.reset is none"):
            read(reader, 1)


def test_two_tasks_may_not_poll_one_consumer(broker: Any, filled: str) -> None:
    """Spec: B9."""

    async def story() -> None:
        async with AsyncConsumer(QUICK, bootstrap_servers=broker.bootstrap, group_id=filled) as reader:
            await reader.subscribe([filled])
            polling = asyncio.ensure_future(reader.poll(300_000))
            await asyncio.sleep(0)
            with pytest.raises(OttlaError, match="already running"):
                await reader.poll(0)
            assert await polling

    asyncio.run(story())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ottla_and_librdkafka_share_one_group(broker: Any, filled: str, strategy: str, admin: Admin) -> None:
    """Either can lead: both understand each other's subscriptions and assignments."""
    from confluent_kafka import Consumer as Librdkafka

    if strategy == "sticky":
        pytest.skip("librdkafka has no eager sticky assignor")
    theirs = Librdkafka(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": filled, "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest", "session.timeout.ms": 60_000, "heartbeat.interval.ms": 200,
        }
    )  # fmt: skip
    found: list[int] = []

    def both(holds: Callable[[], bool]) -> None:
        deadline = monotonic() + PATIENCE_S
        while not holds():
            assert monotonic() < deadline, (ours.assignment(), theirs.assignment())
            found.extend(int(record.value or b"") for record in ours.poll(30))
            message = theirs.poll(0.03)
            if message is not None and message.error() is None:
                found.append(int(message.value() or b""))

    try:
        with consumer(broker, filled, partition_assignment_strategy=strategy) as ours:
            theirs.subscribe([filled])
            ours.subscribe([filled])
            both(lambda: len(ours.assignment()) == len(theirs.assignment()) == 2)
            both(lambda: set(found) == set(range(100)))
            write(broker, filled, range(100, 140))
            both(lambda: set(found) == set(range(140)))
            (group,) = admin.describe_groups([filled])
            assert group.protocol == strategy
            assert len(group.members) == 2
            theirs.close()
            drive([ours], lambda: len(ours.assignment()) == 4)
    finally:
        theirs.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_the_error_of_a_listener_is_raised_and_the_rebalance_is_finished(
    broker: Any, filled: str, strategy: str
) -> None:
    class Failing(Diary):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            super().on_partitions_revoked(partitions)
            raise ValueError("in the listener")

    diary = Failing()
    one = consumer(broker, filled, partition_assignment_strategy=strategy)
    with consumer(broker, filled, partition_assignment_strategy=strategy) as two:
        one.subscribe([filled], listener=diary)
        read(one, 100)
        two.subscribe([filled])
        with pytest.raises(ValueError, match="in the listener"):
            drive([one, two], lambda: False)
        drive([one, two], lambda: len(one.assignment()) == len(two.assignment()) == 2)
        with pytest.raises(ValueError, match="in the listener"):
            one.close()
        drive([two], lambda: len(two.assignment()) == 4)
