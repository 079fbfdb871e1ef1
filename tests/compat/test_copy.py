"""`ottla copy` between Ottla and Apache Kafka, in both directions, killed on the way. Spec: E9, E10."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla import Admin, Broker, Consumer, ErrorCode, KafkaError, NewTopic, Producer
from ottla.broker.embedded.broker import EmbeddedBroker
from ottla.cli.copy import copier
from ottla.cli.copy.groups import GroupCopier
from ottla.cli.copy.ledger import LEDGER_TOPIC
from ottla.cli.copy.sides import Side
from ottla.cli.main import main
from ottla.cli.output import CommandError
from ottla.client.producer.producer import AsyncProducer
from ottla.types import TopicPartition
from tests.support.processes import copy_command
from tests.support.processes.crashing import Step, crash_example
from tests.support.processes.oracle import Target
from tests.support.waiting import PATIENCE_S

COPY = Path(copy_command.__file__)
PRODUCER = "ottla.client.producer.producer:AsyncProducer"
KILLS = [
    Step("before", f"{PRODUCER}.commit_transaction", 2),  # everything is written, nothing is committed
    Step("after", f"{PRODUCER}.commit_transaction", 2),  # committed, but the client gets no answer
]
Record = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


class Clusters(NamedTuple):
    """Two clusters, by their addresses."""

    source: str
    target: str

    def copy(self, *words: str) -> int:
        return main(["copy", *self.options, *words])

    @property
    def options(self) -> list[str]:
        return ["--from", self.source, "--to", self.target]


@pytest.fixture(scope="module")
def second() -> Iterator[str]:
    """Another Ottla. All tests of this module share it; each has its own topics."""
    with Broker.embedded() as broker:
        yield broker.bootstrap


@pytest.fixture(
    params=[
        "ottla-ottla",
        pytest.param("ottla-kafka", marks=pytest.mark.oracle),
        pytest.param("kafka-ottla", marks=pytest.mark.oracle),
    ]
)
def clusters(request: pytest.FixtureRequest, second: str) -> Clusters:
    names = request.param.split("-")
    if names == ["ottla", "ottla"]:
        ottla: Target = request.getfixturevalue("ottla")
        return Clusters(ottla.bootstrap, second)
    kafka: Target = request.getfixturevalue("kafka")
    return Clusters(second, kafka.bootstrap) if names[0] == "ottla" else Clusters(kafka.bootstrap, second)


def fill(bootstrap: str, topic: str, *, partitions: int = 2, transactions: int = 8, **configs: str) -> None:
    """Transactions of five records in each partition; every third one is aborted."""
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1, settings)])
    with Producer(bootstrap_servers=bootstrap, transactional_id=f"fill-{topic}") as producer:
        producer.init_transactions()
        write(producer, topic, range(transactions), partitions)


def write(producer: Producer, topic: str, transactions: range, partitions: int = 2) -> None:
    for number in transactions:
        producer.begin_transaction()
        for partition in range(partitions):
            for record in range(5):
                producer.send(
                    topic,
                    None if record == 3 else f"{number}-{record}".encode(),
                    key=None if record == 4 else f"k{record}".encode(),
                    partition=partition,
                    timestamp=1_700_000_000_000 + number * 10 + record,
                    headers=[("n", str(number).encode()), ("nothing", None)] if record else [],
                )
        if number % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def records(bootstrap: str, topic: str, partitions: int = 2) -> dict[int, list[Record]]:
    """Everything that is committed, by partition."""
    found: dict[int, list[Record]] = {}
    for partition in range(partitions):
        place = TopicPartition(topic, partition)
        with Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([place])
            (end,) = consumer.end_offsets([place]).values()
            found[partition] = []
            while consumer.position(place) < end:
                for each in consumer.poll(500):
                    found[partition].append((each.key, each.value, each.timestamp, [*each.headers]))
    return found


def test_a_copier_that_is_killed_again_and_again_copies_everything_once(
    clusters: Clusters, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(clusters.source, topic, retention_ms="-1", max_message_bytes="2000000")
    for step in KILLS:
        crash_example(COPY, step, *clusters.options, "--topics", topic)
    assert clusters.copy("--topics", topic) == 0
    copied = records(clusters.target, topic)
    assert copied == records(clusters.source, topic)
    assert len(copied[0]) == 25
    # Nothing is left to do, and both sides are found equal.
    capsys.readouterr()
    assert clusters.copy("--topics", topic, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["records"] == 0
    assert clusters.copy("--topics", topic, "--verify", "--json") == 0
    compared = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["source_records"], each["target_records"], each["equal"]) for each in compared] == [
        (25, 25, True)
    ] * 2
    with Admin(bootstrap_servers=clusters.target) as admin:
        own = {entry.name: entry.value for entry in admin.describe_configs("topic", topic) if entry.source == "topic"}
    assert own == {"retention.ms": "-1", "max.message.bytes": "2000000"}


def test_groups_continue_with_the_next_record_on_the_other_side(clusters: Clusters, topic: str) -> None:
    fill(clusters.source, topic)
    expected = records(clusters.source, topic)
    read_before = [0, 7, 25]
    groups = [f"{topic}-{count}" for count in read_before]
    for group, wanted in zip(groups, read_before, strict=True):
        consume(clusters.source, group, topic, wanted)
    assert clusters.copy("--topics", topic, "--groups", f"{topic}-.*") == 0
    for group, before in zip(groups, read_before, strict=True):
        assert consume(clusters.target, group, topic, 100) == expected[0][before:]


def consume(bootstrap: str, group: str, topic: str, most: int) -> list[Record]:
    """The next records of partition 0 for this group, which commits after them."""
    place = TopicPartition(topic, 0)
    with Consumer(
        bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([place])
        (end,) = consumer.end_offsets([place]).values()
        found: list[Record] = []
        while len(found) < most and consumer.position(place) < end:
            for each in consumer.poll(500, max_records=most - len(found)):
                found.append((each.key, each.value, each.timestamp, [*each.headers]))  # noqa: PERF401
        consumer.commit()
    return found


def test_a_second_copy_adds_what_is_new_and_new_partitions(clusters: Clusters, topic: str) -> None:
    fill(clusters.source, topic, transactions=2)
    assert clusters.copy("--topics", topic) == 0
    with Admin(bootstrap_servers=clusters.source) as admin:
        admin.create_partitions({topic: 3})
    with Producer(bootstrap_servers=clusters.source, transactional_id=f"more-{topic}") as producer:
        producer.init_transactions()
        write(producer, topic, range(2, 5), partitions=3)
    assert clusters.copy("--topics", topic) == 0
    assert records(clusters.target, topic, 3) == records(clusters.source, topic, 3)


# Rules that hold between any two clusters


@pytest.fixture
def both(ottla: Target, second: str) -> Clusters:
    return Clusters(ottla.bootstrap, second)


def test_a_group_far_behind_is_translated_between_the_points_of_the_ledger(
    both: Clusters, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers of the copier's own transactions lie between the points, and aborted records in the source."""
    monkeypatch.setattr(copier, "TRANSACTION_BYTES", 1)
    monkeypatch.setattr(copier, "POLL_RECORDS_MAX", 6)
    fill(both.source, topic, transactions=12)
    expected = records(both.source, topic)[0]
    groups = {f"{topic}-{count}": count for count in (1, 13, 22, 39)}
    for group, before in groups.items():
        consume(both.source, group, topic, before)
    assert both.copy("--topics", topic, "--groups", f"{topic}-.*") == 0
    for group, before in groups.items():
        assert consume(both.target, group, topic, 100) == expected[before:]


def test_a_difference_is_found(both: Clusters, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(both.source, topic, partitions=1)
    assert both.copy("--topics", topic) == 0
    with Admin(bootstrap_servers=both.source) as admin:
        admin.delete_records({(topic, 0): 3})
    assert both.copy("--topics", topic, "--verify") == 0, "records that the source has deleted are no difference"
    with Admin(bootstrap_servers=both.target) as admin:
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, 1, 1)])
    capsys.readouterr()
    assert both.copy("--topics", topic, "--verify") == 1
    assert "1 of 1 partition differ" in capsys.readouterr().err


def test_a_compacted_topic_is_compared_by_key(both: Clusters, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Admin(bootstrap_servers=both.source) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, {"cleanup.policy": "compact"})])
    with Producer(bootstrap_servers=both.source) as producer:
        for number in range(30):
            value = None if number % 7 == 6 else str(number).encode()
            producer.send(topic, value, key=str(number % 7).encode())
    assert both.copy("--topics", topic) == 0
    capsys.readouterr()
    assert both.copy("--topics", topic, "--verify", "--json") == 0
    (compared,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (compared["compared"], compared["equal"]) == (6, True)


def test_topics_that_others_wrote_to_are_left_alone(
    both: Clusters, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(both.source, topic)
    fill(both.target, topic)
    assert both.copy("--topics", topic) == 1
    assert "has records that this copy did not write" in capsys.readouterr().err


def test_broker_timestamps_are_kept_with_a_note_to_the_user(
    both: Clusters, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(both.source, topic, message_timestamp_type="LogAppendTime")
    assert both.copy("--topics", topic) == 0
    assert records(both.target, topic) == records(both.source, topic)
    assert f"{topic}: set message.timestamp.type=LogAppendTime in the target" in capsys.readouterr().err


@pytest.mark.parametrize("transactions", [1, 12])
def test_a_source_topic_that_was_recreated_is_refused(
    both: Clusters, topic: str, transactions: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it has more records than before, so that the position in it looks plausible (KIP-516)."""
    fill(both.source, topic)
    assert both.copy("--topics", topic) == 0
    with Admin(bootstrap_servers=both.source) as admin:
        admin.delete_topics([topic])
    fill(both.source, topic, transactions=transactions)
    assert both.copy("--topics", topic) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"topic {topic} of the source was deleted and recreated after it was copied" in said
    with Admin(bootstrap_servers=both.target) as admin:
        admin.delete_topics([topic])
    assert both.copy("--topics", topic) == 0, "the fix that the error names works"
    assert "is empty again in the target" in capsys.readouterr().err
    assert records(both.target, topic) == records(both.source, topic)
    assert both.copy("--topics", topic, "--verify") == 0


def test_a_first_transaction_that_was_aborted_is_no_foreign_record(both: Clusters, topic: str) -> None:
    """It takes up offsets in the target, although it is not in the ledger."""
    fill(both.source, topic)
    with Admin(bootstrap_servers=both.target) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, {})])
    with Producer(bootstrap_servers=both.target, transactional_id=f"crashed-{topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(2):
            producer.send(topic, b"aborted", partition=partition)
        producer.flush()
        producer.abort_transaction()
    assert both.copy("--topics", topic) == 0
    assert records(both.target, topic) == records(both.source, topic)


def test_a_topic_that_was_never_copied_is_not_called_equal(
    both: Clusters, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(both.source, topic)
    fill(both.source, f"{topic}-other")
    assert both.copy("--topics", topic) == 0
    assert both.copy("--topics", f"{topic}.*", "--verify") == 1
    assert f"{topic}-other-0: not copied yet" in capsys.readouterr().err
    with Admin(bootstrap_servers=both.target) as admin:
        admin.create_topics([NewTopic(f"{topic}-other", 2, 1, {})])
    assert both.copy("--topics", f"{topic}.*", "--verify") == 1, "an empty topic is not a copy, either"
    assert f"{topic}-other-0: not copied yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--topics", "("], 2, "--topics ( is not a regular expression"),
        (["--topics", "x", "--groups", "("], 2, "--groups ( is not a regular expression"),
        (["--topics", "x", "--verify", "--follow"], 2, "--verify cannot be combined with --follow or --groups"),
        (["--topics", "no-such-topic"], 1, "no topic of the source matches no-such-topic"),
        (["--topics", "x", "--to-config", "/no/such/file"], 2, "/no/such/file: no such file"),
    ],
)
def test_mistakes_are_explained_in_one_line(
    both: Clusters, words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert both.copy(*words) == status
    error = capsys.readouterr().err
    assert error.startswith(f"ottla: {message}")
    assert error.count("\n") == 1


def test_a_cluster_is_not_copied_to_itself(both: Clusters, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Clusters(both.source, both.source).copy("--topics", topic) == 1
    assert "source and target are the same cluster" in capsys.readouterr().err


def test_the_ledger_is_compacted(both: Clusters, topic: str) -> None:
    fill(both.source, topic, transactions=1)
    assert both.copy("--topics", topic) == 0
    with Admin(bootstrap_servers=both.target) as admin:
        entries: list[Any] = admin.describe_configs("topic", LEDGER_TOPIC, names=["cleanup.policy"])
    assert entries[0].value == "compact"


def test_a_follower_finds_new_records_topics_and_groups_and_survives_an_outage(
    topic: str, monkeypatch: pytest.MonkeyPatch, ottla: Target
) -> None:
    """It runs in this process; the target is killed and started again on the way."""
    monkeypatch.setattr(copier, "REFRESH_S", 0.3)
    later = f"{topic}-later"
    fill(ottla.bootstrap, topic, transactions=2)

    async def story(target: EmbeddedBroker) -> None:
        sides = Side(ottla.bootstrap), Side(target.bootstrap)
        running = copier.Copier(*sides, f"{topic}.*", on_progress=lambda status: None)
        groups = GroupCopier(*sides, f"{topic}-.*", running.status)
        following = asyncio.create_task(running.run(follow=True, when_refreshed=lambda: groups.run(running.ledger)))

        async def until_copied(*names: str) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        if all([await both_equal(name) for name in names]):
                            return
                    except KafkaError:  # the topic does not exist yet, or the target is down
                        pass
                    assert not following.done(), following.exception()
                    await asyncio.sleep(0.1)

        async def both_equal(name: str) -> bool:
            known = running.ledger.copied.get(TopicPartition(name, 1))
            return known is not None and await asyncio.to_thread(
                lambda: records(target.bootstrap, name) == records(ottla.bootstrap, name)
            )

        await until_copied(topic)
        target.kill()
        await asyncio.to_thread(fill, ottla.bootstrap, later, transactions=3)
        await asyncio.to_thread(consume, ottla.bootstrap, f"{topic}-group", later, 4)
        await asyncio.sleep(0.5)
        target.restart()
        await until_copied(topic, later)
        async with asyncio.timeout(PATIENCE_S):
            while f"{topic}-group" not in groups.committed:
                assert not following.done(), following.exception()
                await asyncio.sleep(0.1)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        expected = records(ottla.bootstrap, later)[0][4:]
        assert await asyncio.to_thread(consume, target.bootstrap, f"{topic}-group", later, 100) == expected

    with Broker.embedded() as target:
        asyncio.run(story(target))


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "not committed"])
def test_a_commit_with_an_unknown_outcome_is_looked_up_in_the_ledger(
    both: Clusters, topic: str, is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "TRANSACTION_BYTES", 1)
    monkeypatch.setattr(copier, "POLL_RECORDS_MAX", 6)
    commit, failures = AsyncProducer.commit_transaction, 0

    async def unlucky(producer: AsyncProducer, *, timeout_ms: Any = None) -> None:
        nonlocal failures
        failures += 1
        if failures % 3 != 2:
            await commit(producer, timeout_ms=timeout_ms)
            return
        if is_committed:
            await commit(producer, timeout_ms=timeout_ms)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")

    fill(both.source, topic)
    monkeypatch.setattr(AsyncProducer, "commit_transaction", unlucky)
    running = copier.Copier(Side(both.source), Side(both.target), topic, on_progress=lambda status: None)
    asyncio.run(running.run())
    assert running.status.restarts >= 2
    assert records(both.target, topic) == records(both.source, topic)


def test_the_second_copier_stops_the_first(both: Clusters, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "REFRESH_S", 60.0)
    fill(both.source, topic)

    async def story() -> None:
        sides = Side(both.source), Side(both.target)
        first = copier.Copier(*sides, topic, on_progress=lambda status: None)
        following = asyncio.create_task(first.run(follow=True))
        async with asyncio.timeout(PATIENCE_S):
            while first.status.records < 50:
                assert not following.done(), following.exception()
                await asyncio.sleep(0.05)
        await copier.Copier(*sides, topic, on_progress=lambda status: None).run()
        with Producer(bootstrap_servers=both.source) as producer:
            producer.send(topic, b"one more", partition=0).result()
        with pytest.raises(CommandError, match="another ottla copy of the same source and target has taken over"):
            async with asyncio.timeout(PATIENCE_S):
                await following

    asyncio.run(story())
    assert both.copy("--topics", topic) == 0
    assert records(both.target, topic) == records(both.source, topic)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_copy_ends_when_its_topic_or_records_are_deleted_meanwhile(
    both: Clusters, topic: str, is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "TRANSACTION_BYTES", 1)
    monkeypatch.setattr(copier, "POLL_RECORDS_MAX", 6)
    monkeypatch.setattr(copier, "STALLED_S", 0.5)
    fill(both.source, topic, partitions=1)
    fill(both.source, f"{topic}-other", partitions=1)
    is_done = False

    def interfere(status: copier.Status) -> None:
        nonlocal is_done
        if is_done:
            return
        is_done = True
        with Admin(bootstrap_servers=both.source) as admin:
            if is_deleted:
                admin.delete_topics([topic])
            else:
                admin.delete_records({(topic, 0): 20})

    async def story() -> None:
        copying = copier.Copier(Side(both.source), Side(both.target), f"{topic}.*", on_progress=interfere)
        async with asyncio.timeout(PATIENCE_S):
            await copying.run()
        assert [f"{topic} was deleted in the source while it was copied"] * is_deleted == copying.status.notices

    asyncio.run(story())
    assert records(both.target, f"{topic}-other", 1) == records(both.source, f"{topic}-other", 1)
