"""transform(): what each guarantee preserves when something fails, and what it does not."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ottla import Admin, AsyncConsumer, AsyncProducer, Consumer, ErrorCode, Producer
from ottla.client.core.guarantees import Guarantee
from ottla.client.core.model import LATEST, ConsumerRecord
from ottla.client.transactions.errors import TransactionAbortable
from ottla.client.transform import Output, async_transform, dead_letter, transform
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S, eventually

COUNT = 60
PARTITIONS = 2


class Topics:
    """A topic of numbers, and one for the results."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.source, self.to, self.group = f"{name}-in", f"{name}-out", f"{name}-group"
        self.dead = f"{name}-dead"
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(self.source, partitions=PARTITIONS)
            admin.create_topic(self.to, partitions=PARTITIONS, configs={"max.message.bytes": "2000"})
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(COUNT):
                producer.send(self.source, f"{number}", key=f"{number}", partition=number % PARTITIONS)

    def run(self, function: Callable[[ConsumerRecord], Any], guarantee: str, **options: Any) -> Any:
        options.setdefault("until_end", True)
        options.setdefault("max_poll_records", 7)
        # The default timeout of transform() is so short that a transaction may time out while the machine stalls.
        settings = {"bootstrap.servers": self.bootstrap, "transaction.timeout.ms": 60_000}
        return transform(
            function, self.source, self.to, group_id=self.group, guarantee=guarantee, settings=settings, **options
        )

    def output(self) -> list[int]:
        return sorted(number_of(record) for record in self.read(self.to))

    def read(self, topic: str, partition: int | None = None, offset: int = 0) -> list[ConsumerRecord]:
        """The committed records of a topic, or those of one partition from an offset on."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            (description,) = admin.describe_topics([topic])
        chosen = [each.partition for each in description.partitions] if partition is None else [partition]
        places = [TopicPartition(topic, index) for index in chosen]
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            latest = admin.list_offsets(dict.fromkeys(places, LATEST))
        # Not the last stable offsets: a commit returns before its markers are written.
        ends = {place: found.offset for place, found in latest.items() if found is not None}
        settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        with Consumer(settings, bootstrap_servers=self.bootstrap) as consumer:
            consumer.assign(places)
            for place in places:
                consumer.seek(place, offset)
            found: list[ConsumerRecord] = []
            while any(consumer.position(place) < ends[place] for place in places):
                found += consumer.poll(500)
            return found


@pytest.fixture
def topics(broker: Any, topic: str) -> Topics:
    return Topics(broker.bootstrap, topic)


def number_of(record: ConsumerRecord) -> int:
    return int(record.value or b"")


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_without_failures_nothing_is_lost_or_repeated(topics: Topics, guarantee: str) -> None:
    done = topics.run(lambda record: f"{number_of(record) * 10}", guarantee)
    assert (done.consumed, done.produced, done.failed, done.aborted) == (COUNT, COUNT, 0, 0)
    assert topics.output() == [number * 10 for number in range(COUNT)]
    assert topics.run(lambda record: record.value, guarantee).consumed == 0, "the group remembers"


class ProcessingError(Exception):
    pass


def run_with_failures(topics: Topics, guarantee: str) -> None:
    """The function fails for three records, once for each, and is started again."""
    failures = {11, 30, 47}

    def function(record: ConsumerRecord) -> bytes | None:
        if number_of(record) in failures:
            failures.discard(number_of(record))
            raise ProcessingError
        return record.value

    for _ in range(4):
        with contextlib.suppress(ProcessingError):
            topics.run(function, guarantee)
    assert not failures


def test_exactly_once_whatever_the_function_raises(topics: Topics) -> None:
    """Spec: E9."""
    run_with_failures(topics, "exactly-once")
    assert topics.output() == list(range(COUNT))


def test_at_least_once_loses_nothing(topics: Topics) -> None:
    run_with_failures(topics, "at-least-once")
    assert set(topics.output()) == set(range(COUNT))


def test_at_most_once_repeats_nothing(topics: Topics) -> None:
    run_with_failures(topics, "at-most-once")
    counted = Counter(topics.output())
    assert set(counted.values()) == {1}
    assert COUNT - 3 * 7 <= len(counted) < COUNT, "records that were polled with the failing record are lost"


def test_members_share_the_work_and_write_everything_once(topics: Topics) -> None:
    """Spec: E9. A second instance joins in the middle, so partitions move while transactions are open."""
    seen: list[int] = []
    second = threading.Thread(target=lambda: topics.run(lambda record: record.value, "exactly-once"))

    def function(record: ConsumerRecord) -> bytes | None:
        seen.append(number_of(record))
        if len(seen) == 10:
            second.start()
        return record.value

    topics.run(function, "exactly-once", max_poll_records=2)
    second.join(PATIENCE_S)
    assert topics.output() == list(range(COUNT))


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_an_instance_without_partitions_is_at_the_end(topics: Topics, guarantee: str) -> None:
    """More instances than partitions: those that got nothing have nothing to wait for."""
    stop = threading.Event()

    def instance(name: str, **options: Any) -> threading.Thread:
        # Assignors go by these names: the last one gets nothing.
        options["group_instance_id"] = name
        thread = threading.Thread(target=topics.run, args=(lambda record: record.value, guarantee), kwargs=options)
        thread.start()
        return thread

    holders = [instance(name, until_end=False, stop=stop) for name in ("a", "b")]
    try:
        with Admin(bootstrap_servers=topics.bootstrap) as admin:

            def shares() -> list[int]:
                try:
                    (group,) = admin.describe_groups([topics.group])
                except KafkaError as error:
                    if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                        raise
                    return []  # no member has joined yet
                return [len(member.assignment) for member in group.members]

            eventually(lambda: shares() == [1, 1])
        late = instance("z", until_end=True, stop=stop)
        late.join(PATIENCE_S)
        assert not late.is_alive()
        eventually(lambda: len(topics.output()) == COUNT)
    finally:
        stop.set()
        for each in holders:
            each.join(PATIENCE_S)
    assert topics.output() == list(range(COUNT))


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_a_member_removed_while_it_worked_continues(topics: Topics, guarantee: str) -> None:
    """As after max.poll.interval.ms: its records come again, to their new owner."""
    removed = False

    def function(record: ConsumerRecord) -> bytes | None:
        nonlocal removed
        if number_of(record) == 20 and not removed:
            removed = True
            with Admin(bootstrap_servers=topics.bootstrap) as admin:
                admin.remove_members(topics.group)
        return record.value

    done = topics.run(function, guarantee)
    assert done.consumed == COUNT
    counted = Counter(topics.output())
    assert set(counted) == set(range(COUNT)), "none is missing, as nobody crashed"
    if guarantee == "at-least-once":
        assert 7 >= sum(counted.values()) - COUNT > 0, "results that could not be committed were written again"
    else:
        assert sum(counted.values()) == COUNT
    assert topics.run(lambda record: record.value, guarantee).consumed == 0


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS])
def test_at_most_once_processes_nothing_whose_commit_failed(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    commit, calls, seen = AsyncConsumer.commit, 0, []

    async def refuse_some(self: AsyncConsumer, *arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls in (2, 5):
            raise KafkaError(code, "the group has moved on")
        await commit(self, *arguments, **options)

    def function(record: ConsumerRecord) -> bytes | None:
        seen.append(number_of(record))
        return record.value

    monkeypatch.setattr(AsyncConsumer, "commit", refuse_some)
    assert topics.run(function, "at-most-once").consumed == COUNT
    assert sorted(seen) == list(range(COUNT)) == topics.output()


def test_a_commit_that_fails_for_another_reason_is_an_error(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: AsyncConsumer, *arguments: Any, **options: Any) -> None:
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not yours")

    monkeypatch.setattr(AsyncConsumer, "commit", refuse)
    with pytest.raises(KafkaError, match="not yours"):
        topics.run(lambda record: record.value, "at-least-once")


# --- breaking off -----------------------------------------------------------------------------------------------


def members(topics: Topics) -> int:
    with Admin(bootstrap_servers=topics.bootstrap) as admin:
        return len(admin.describe_groups([topics.group])[0].members)


def is_left(topics: Topics) -> None:
    """Nobody is in the group any more, long before a session of 45 s could have ended."""
    eventually(lambda: members(topics) == 0, 30)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleaning up after Ctrl-C takes as long as it takes: also when the machine stalls."""
    monkeypatch.setattr("ottla.client.transform.CLOSE_TIMEOUT_MS", 60_000)
    monkeypatch.setattr("ottla.client.transform.CLEAN_UP_S", 60)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_ctrl_c_leaves_the_group_at_once(topics: Topics, guarantee: str, unhurried: None) -> None:
    """Not when the session ends: until then nobody would read its partitions."""

    def function(record: ConsumerRecord) -> bytes | None:
        if record.offset == 10:
            assert members(topics) == 1
            raise KeyboardInterrupt
        return record.value

    with pytest.raises(KeyboardInterrupt):
        topics.run(function, guarantee)
    is_left(topics)


CHILD = """
import asyncio, sys
import ottla
import ottla.client.transform
from ottla import AsyncProducer

ottla.client.transform.CLOSE_TIMEOUT_MS = 60_000
ottla.client.transform.CLEAN_UP_S = 60
bootstrap, source, to, group = sys.argv[1:]

async def stay(self, *arguments, **options):
    await self.flush()  # what was sent is in the log, the transaction open
    print("open", flush=True)
    await asyncio.sleep(600)

AsyncProducer.send_offsets_to_transaction = stay
ottla.transform(lambda record: record.value, source, to, group_id=group, bootstrap_servers=bootstrap,
                transaction_timeout_ms=60_000)
"""


def test_ctrl_c_aborts_the_open_transaction(topics: Topics) -> None:
    """If it stayed open, it would block read_committed consumers until it timed out."""
    command = [sys.executable, "-c", CHILD, topics.bootstrap, topics.source, topics.to, topics.group]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "open\n"
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
    assert errors.endswith("KeyboardInterrupt\n")
    is_left(topics)
    with Admin(bootstrap_servers=topics.bootstrap) as admin:
        states = {each.state for each in admin.list_transactions() if each.transactional_id.startswith(topics.group)}
    assert states
    assert "Ongoing" not in states
    assert topics.run(lambda record: record.value, "exactly-once").consumed == COUNT
    assert topics.output() == list(range(COUNT))


def test_ctrl_c_does_not_wait_forever(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close, may_close = AsyncProducer.close, threading.Event()

    async def slow(self: AsyncProducer, timeout_ms: int | None = None) -> None:
        await asyncio.to_thread(may_close.wait)
        await close(self, timeout_ms)

    def function(record: ConsumerRecord) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AsyncProducer, "close", slow)
    monkeypatch.setattr("ottla.client.transform.CLEAN_UP_S", 0.1)
    with pytest.raises(KeyboardInterrupt):
        topics.run(function, "at-least-once")
    assert "could not leave in time" in caplog.text
    may_close.set()
    is_left(topics)


def test_the_group_is_left_even_if_the_producer_cannot_be_closed(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = AsyncProducer.close

    async def fail(self: AsyncProducer, timeout_ms: int | None = None) -> None:
        await close(self, timeout_ms)
        raise ProcessingError

    monkeypatch.setattr(AsyncProducer, "close", fail)
    with pytest.raises(ProcessingError):
        topics.run(lambda record: record.value, "at-least-once")
    is_left(topics)


def test_assigned_partitions_need_a_transactional_id_and_then_work(topics: Topics) -> None:
    places = [TopicPartition(topics.source, index) for index in range(PARTITIONS)]
    options: dict[str, Any] = {
        "group_id": topics.group,
        "settings": {"bootstrap.servers": topics.bootstrap},
        "until_end": True,
    }
    with pytest.raises(OttlaError, match="transactional id"):
        transform(lambda record: record.value, places, topics.to, **options)
    for _ in range(2):
        transform(lambda record: record.value, places, topics.to, transactional_id=topics.group, **options)
    assert topics.output() == list(range(COUNT))


def test_records_of_an_aborted_transaction_are_read_again(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec: E9. A transaction that the cluster refuses is repeated, in order and with the records after it."""
    send_offsets, calls = AsyncProducer.send_offsets_to_transaction, 0

    async def refuse_some(self: AsyncProducer, *arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls in (2, 5):
            raise TransactionAbortable(ErrorCode.TRANSACTION_ABORTABLE, "not now")
        await send_offsets(self, *arguments, **options)

    monkeypatch.setattr(AsyncProducer, "send_offsets_to_transaction", refuse_some)
    done = topics.run(lambda record: record.value, "exactly-once")
    assert (done.aborted, done.consumed, done.produced) == (2, COUNT, COUNT)
    assert topics.output() == list(range(COUNT))


def test_an_error_names_the_record(topics: Topics) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        topics.run(lambda record: 1 // 0, "exactly-once")
    assert any(f"{topics.source}-" in note and "at offset 0" in note for note in caught.value.__notes__)
    with pytest.raises(OttlaError, match="the function returned float"):
        topics.run(lambda record: 1.5, "exactly-once")
    with pytest.raises(OttlaError, match="the function returned dict") as refused:
        topics.run(lambda record: {"number": number_of(record)}, "exactly-once")
    assert "json.dumps" in str(refused.value.hint)
    with pytest.raises(OttlaError, match="the function returned dict"):
        topics.run(lambda record: [{"number": number_of(record)}], "at-least-once")
    assert topics.output() == []


def test_results_that_cannot_be_written_are_refused(topics: Topics) -> None:
    """With exactly-once it is an error, and nothing of its transaction is visible; with at-most-once it is counted."""

    def function(record: ConsumerRecord) -> bytes | None:
        return b"x" * 5_000 if number_of(record) == 0 else record.value

    with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
        topics.run(function, "exactly-once")
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        topics.run(function, "at-least-once", max_poll_records=1)
    done = topics.run(function, "at-most-once", max_poll_records=1)
    assert done.failed == 1


def test_an_output_without_a_topic_is_refused_with_its_record(topics: Topics) -> None:
    settings = {"bootstrap.servers": topics.bootstrap}
    expected = rf"^while transforming {topics.source}-\d at offset 0: an output has no topic\. Pass to="
    with pytest.raises(OttlaError, match=expected):
        transform(
            lambda record: record.value,
            topics.source,
            group_id=topics.group,
            guarantee="at-least-once",
            settings=settings,
            until_end=True,
        )


def test_a_record_may_become_several_or_none_in_any_topic(topics: Topics) -> None:
    def function(record: ConsumerRecord) -> list[Any] | None:
        if number_of(record) % 2:
            return None
        return [b"%d" % number_of(record), Output(b"1000", key=b"k", topic=topics.to, partition=1, headers={"h": b"v"})]

    done = topics.run(function, "exactly-once")
    assert (done.consumed, done.produced) == (COUNT, COUNT)
    assert topics.output() == sorted([*range(0, COUNT, 2), *[1000] * (COUNT // 2)])


def test_it_stops_when_stop_is_set(topics: Topics) -> None:
    stop = threading.Event()

    def function(record: ConsumerRecord) -> bytes | None:
        stop.set()
        return record.value

    done = topics.run(function, "exactly-once", stop=stop, until_end=False)
    assert 0 < done.consumed <= 7


def test_async_transform_awaits_the_function(topics: Topics) -> None:
    async def function(record: ConsumerRecord) -> bytes | None:
        await asyncio.sleep(0)
        return record.value

    options: dict[str, Any] = {
        "group_id": topics.group,
        "bootstrap_servers": topics.bootstrap,
        "until_end": True,
    }
    done = asyncio.run(async_transform(function, topics.source, topics.to, **options))
    assert done.consumed == COUNT
    assert topics.output() == list(range(COUNT))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guarantee": "twice"}, "unknown guarantee 'twice'"),
        ({"group_id": ""}, r"you must provide a valid group\.id"),
        ({"source": []}, "source is empty"),
        ({"source": ["a", ("b", 0)]}, "mixes topics and partitions"),
        ({"guarantee": "at-least-once", "transactional_id": "x"}, "does not use transactions"),
        ({"enable_auto_commit": True}, "enable.auto.commit is set by transform"),
        ({"settings": {"linger.mss": 1}}, "linger.mss"),
        ({"lingerms": 1}, "lingerms"),
    ],
)
def test_invalid_arguments_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    arguments = {"source": "a", "to": "b", "group_id": "g", **options}
    with pytest.raises(OttlaError, match=message):
        transform(lambda record: None, **arguments)


# Errors of the function


def odd_ones_fail(record: ConsumerRecord) -> bytes | None:
    if number_of(record) % 2:
        raise ValueError(f"{number_of(record)} is odd")
    return record.value


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_records_that_the_function_fails_on_become_dead_letters(topics: Topics, guarantee: str) -> None:
    done = topics.run(odd_ones_fail, guarantee, dead_letters=topics.dead)
    assert (done.consumed, done.produced, done.errors) == (COUNT, COUNT, COUNT // 2)
    assert topics.output() == list(range(0, COUNT, 2))
    letters = topics.read(topics.dead)
    assert sorted(int(letter.value or b"") for letter in letters) == list(range(1, COUNT, 2))
    for letter in letters:
        headers = dict(letter.headers)
        assert headers["ottla.error"] == b"ValueError: %s is odd" % letter.value
        assert headers["ottla.topic"] == topics.source.encode()
        source = topics.read(topics.source, int(headers["ottla.partition"] or b""), int(headers["ottla.offset"] or b""))
        assert (source[0].key, source[0].value, source[0].timestamp) == (letter.key, letter.value, letter.timestamp)


def test_an_error_handler_skips_replaces_or_raises(topics: Topics) -> None:
    def handler(record: ConsumerRecord, error: Exception) -> bytes | None:
        assert str(error) == f"{number_of(record)} is odd"
        if number_of(record) == 3:
            return b"333"
        if number_of(record) == 5:
            raise KeyError("five")
        return None

    with pytest.raises(KeyError, match="five"):
        topics.run(odd_ones_fail, "exactly-once", on_error=handler)
    done = topics.run(odd_ones_fail, "exactly-once", on_error=handler, dead_letters=topics.dead)
    assert done.errors == COUNT // 2
    assert topics.output() == sorted([*range(0, COUNT, 2), 333])
    assert [letter.value for letter in topics.read(topics.dead)] == [b"5"]


def test_a_generator_that_fails_counts_as_the_function(topics: Topics) -> None:
    def function(record: ConsumerRecord) -> Any:
        yield record.value
        if number_of(record) == 1:
            raise ValueError("half done")

    topics.run(function, "exactly-once", on_error=lambda record, error: None)
    assert topics.output() == [number for number in range(COUNT) if number != 1]


def test_an_async_function_and_its_async_error_handler(topics: Topics) -> None:
    async def function(record: ConsumerRecord) -> bytes | None:
        return odd_ones_fail(record)

    async def handler(record: ConsumerRecord, error: Exception) -> Output:
        return dead_letter(record, error, topics.dead)

    done = asyncio.run(
        async_transform(
            function, topics.source, topics.to, group_id=topics.group, on_error=handler, until_end=True,
            bootstrap_servers=topics.bootstrap,
        )
    )  # fmt: skip
    assert done.errors == COUNT // 2
    assert len(topics.read(topics.dead)) == COUNT // 2


def test_an_output_may_have_no_key(topics: Topics) -> None:
    topics.run(lambda record: [Output(record.value, key=None), Output(b"1000")], "exactly-once")
    keys = {record.value == b"1000": record.key is None for record in topics.read(topics.to)}
    assert keys == {False: True, True: False}
