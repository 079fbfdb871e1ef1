"""transform(): consume, transform and produce in one call; at most once, at least once or exactly once."""

import asyncio
import enum
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ottla.client.blocking.loop import loop_thread
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.arguments import (
    OffsetLike,
    PartitionLike,
    as_partition,
    check_callable,
    check_topic,
    no_group,
)
from ottla.client.core.callers_thread import CallersThread
from ottla.client.core.foreign_settings import translate
from ottla.client.core.guarantees import Guarantee
from ottla.client.core.model import Bytes, ConsumerRecord, HeadersLike
from ottla.client.core.settings import ClientConfig, ConsumerConfig, ProducerConfig
from ottla.client.producer.producer import AsyncProducer
from ottla.client.producer.speedups import Delivery
from ottla.client.transactions.errors import TransactionAbortable
from ottla.config import settings_of, unknown_setting
from ottla.errors import ArgumentError, ConfigError, ErrorCode, KafkaError, OttlaError, error_text_with_type
from ottla.types import TopicPartition

T = TypeVar("T")

log = logging.getLogger("ottla.client")

POLL_MS = 200
TRANSACTION_TIMEOUT_MS = 10_000
"""Shorter than the producer's default: after a crash, the next owner of the partitions waits for this long."""
CLEAN_UP_S = 10
"""After Ctrl-C: how long aborting the transaction and leaving the group may take."""
CLOSE_TIMEOUT_MS = 3_000
"""After Ctrl-C: how long closing each of the two clients may take."""
REBALANCED = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""The group has rebalanced without this member: the new owner of the partitions processes the records again."""
RETRY_AFTER_ABORT = REBALANCED | {
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}
"""After a transaction timeout or a lost producer state, a retry may succeed as well. (Codes of TransactionAbortable: if
another producer has fenced this one, aborting raises TransactionFatal.)"""


class SameKey(enum.Enum):
    """The default of Output.key. None is a record without a key."""

    SAME_KEY = "the key of the input record"


class Output(NamedTuple):
    """A record to produce. By default the key is that of the input record, and the topic that of the call."""

    value: Bytes
    key: Bytes | SameKey = SameKey.SAME_KEY
    topic: str | None = None
    partition: int | None = None
    headers: HeadersLike = None
    timestamp: int | None = None


@dataclass(slots=True)
class Transformed:
    """What a transform has done so far."""

    consumed: int = 0
    produced: int = 0
    failed: int = 0
    """Records that could not be written (at-most-once only; otherwise that is an error)."""
    aborted: int = 0
    """Transactions that were aborted and repeated (exactly-once only)."""
    errors: int = 0
    """Records that the function failed on, and that `on_error` skipped or replaced, or that became dead letters."""


def dead_letter(record: ConsumerRecord, error: BaseException, topic: str) -> "Output":
    """The record unchanged, for a dead-letter topic. Headers contain the error and the record's origin: `ottla.error`,
    `ottla.topic`, `ottla.partition` and `ottla.offset`."""
    added = {
        "ottla.error": error_text_with_type(error),
        "ottla.topic": record.topic,
        "ottla.partition": str(record.partition),
        "ottla.offset": str(record.offset),
    }
    headers = [*record.headers, *((name, text.encode("utf-8", "replace")) for name, text in added.items())]
    return Output(record.value, record.key, topic, headers=headers, timestamp=record.timestamp)


Result = Output | Bytes | Iterable[Output | Bytes]
Function = Callable[[ConsumerRecord], Result]
AsyncFunction = Callable[[ConsumerRecord], Result | Awaitable[Result]]
OnError = Callable[[ConsumerRecord, Exception], Result]
AsyncOnError = Callable[[ConsumerRecord, Exception], Result | Awaitable[Result]]
Batch = list[tuple[ConsumerRecord, list[Output]]]


def transform(
    function: Function,
    source: str | Sequence[Any],
    to: str | None = None,
    *,
    group_id: str,
    guarantee: str = Guarantee.EXACTLY_ONCE,
    settings: Mapping[str, Any] | None = None,
    transactional_id: str | None = None,
    stop: Any = None,
    until_end: bool = False,
    on_error: OnError | None = None,
    dead_letters: str | None = None,
    **keywords: Any,
) -> Transformed:
    """Reads `source`, calls `function` with every record and writes the results to `to`.

    `function` returns a value, an Output, an iterable of them, or None for no output. `source` is one topic or several,
    shared with the group; or partitions, as in [("orders", 0)]. It runs until `stop.is_set()` (a threading.Event) or,
    with `until_end`, until all assigned partitions have been read to the end; otherwise forever. `settings` and
    keywords go to the producer, the consumer or both, by their names.

    If `function` raises, the call ends with that error. `on_error(record, error)` is called instead, if it is given: it
    returns what `function` would, None to skip the record, or raises. With `dead_letters`, a topic, a record that
    neither could transform is written there unchanged (see `ottla.dead_letter`), with the same guarantee.

    exactly-once: the output and the offsets of the input are committed atomically, in one transaction per poll. Pass
    the same `transactional_id` after a restart, so that the unfinished transaction is aborted immediately;
    it is required for assigned partitions.
    at-least-once: offsets are committed after the output is stored; a crash in between repeats records.
    at-most-once: offsets are committed first; a crash, or output that cannot be written, loses records.

    >>> ottla.transform(lambda record: record.value.upper(), "lower", "upper", group_id="shouter",
    ...                 settings={"bootstrap.servers": "127.0.0.1:9092"})
    """
    callers = CallersThread()

    async def apply(records: list[ConsumerRecord]) -> Batch:
        batch: Batch = await callers.run(lambda: _without_waiting(users.apply(records)))
        return batch

    work = _Work(source, to, group_id, guarantee, settings, keywords, transactional_id)
    users = _UserFunctions(work.done, function, on_error, dead_letters, may_be_async=False)
    try:
        return loop_thread.call(work.run(apply, stop, until_end), callers)
    except BaseException:
        if work.is_running:  # after Ctrl-C it still aborts the transaction and leaves the group
            loop_thread.call(work.until_cleaned_up())
        raise


async def async_transform(
    function: AsyncFunction,
    source: str | Sequence[Any],
    to: str | None = None,
    *,
    group_id: str,
    guarantee: str = Guarantee.EXACTLY_ONCE,
    settings: Mapping[str, Any] | None = None,
    transactional_id: str | None = None,
    stop: Any = None,
    until_end: bool = False,
    on_error: AsyncOnError | None = None,
    dead_letters: str | None = None,
    **keywords: Any,
) -> Transformed:
    """As transform(); `function` may be a coroutine function, and `stop` an asyncio.Event."""
    work = _Work(source, to, group_id, guarantee, settings, keywords, transactional_id)
    users = _UserFunctions(work.done, function, on_error, dead_letters, may_be_async=True)
    return await work.run(users.apply, stop, until_end)


class _UserFunctions:
    """Calls the user's functions, and handles the records that they fail on."""

    def __init__(
        self,
        done: Transformed,
        function: AsyncFunction,
        on_error: AsyncOnError | None,
        dead_letters: str | None,
        *,
        may_be_async: bool,
    ) -> None:
        check_callable(on_error, "on_error", "It is called with the record and the error.")
        if dead_letters is not None:
            check_topic(dead_letters)
        self._done = done
        self._function = function
        self._on_error = on_error
        self._dead_letters = dead_letters
        self._may_be_async = may_be_async

    async def apply(self, records: list[ConsumerRecord]) -> Batch:
        """Waits only for functions that are async, and therefore never if they may not be."""
        return [(record, _outputs(record, await self._one(record))) for record in records]

    async def _one(self, record: ConsumerRecord) -> Any:
        try:
            return await self._whole(self._function(record))
        except Exception as error:
            failure = error
        try:
            if self._on_error is not None:
                return self._handled(await self._whole(self._on_error(record, failure)))
        except Exception as error:
            failure = error
        return self._give_up(record, failure)

    async def _whole(self, result: Any) -> Any:
        """The result of a function. A generator runs here, so that its errors count as those of the function."""
        if self._may_be_async and inspect.isawaitable(result):
            result = await result
        return list(result) if inspect.isgenerator(result) else result

    def _handled(self, result: Any) -> Any:
        self._done.errors += 1
        return result

    def _give_up(self, record: ConsumerRecord, error: Exception) -> Any:
        """Returns a dead letter, or raises the error with a note about the record."""
        if self._dead_letters is None:
            error.add_note(_place(record))
            raise error
        log.warning("%s: %s; sent to %s", _place(record), error_text_with_type(error), self._dead_letters)
        return self._handled(dead_letter(record, error, self._dead_letters))


class _Work:
    """One transform: its consumer, its producer and its guarantee."""

    def __init__(
        self,
        source: str | Sequence[Any],
        to: str | None,
        group_id: str,
        guarantee: str,
        settings: Mapping[str, Any] | None,
        keywords: Mapping[str, Any],
        transactional_id: str | None,
    ) -> None:
        if guarantee not in tuple(Guarantee):
            raise ArgumentError(f"unknown guarantee {guarantee!r}", f"Use one of {', '.join(Guarantee)}.")
        if not group_id:
            raise no_group("Pass group_id= to transform(); progress is committed to it.")
        sources = [source] if isinstance(source, str) else list(source)
        if not sources:
            raise ArgumentError("source is empty", "Pass a topic or partitions.")
        self.topics = [each for each in sources if isinstance(each, str)]
        self.partitions = [as_partition(each) for each in sources if not isinstance(each, str)]
        if self.topics and self.partitions:
            raise ArgumentError("source mixes topics and partitions", "Pass topics or partitions.")
        self.to = to
        self.group_id = group_id
        self.guarantee = Guarantee(guarantee)
        self.done = Transformed()
        self.is_running = False
        self._cleaned_up = asyncio.Event()
        consumer, producer = _split(settings, keywords)
        consumer |= {"group.id": group_id, "enable.auto.commit": False}
        consumer.setdefault("auto.offset.reset", "earliest")
        if guarantee == Guarantee.EXACTLY_ONCE:
            if self.partitions and transactional_id is None:
                raise ArgumentError(
                    "exactly-once with assigned partitions needs a transactional id",
                    "Pass transactional_id=, the same for each instance that reads these partitions.",
                )
            # The group's generation fences a member that was removed (KIP-447), so any unique id will do.
            producer["transactional.id"] = transactional_id or f"{group_id}-{secrets.token_hex(8)}"
            producer.setdefault("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
            consumer["isolation.level"] = "read_committed"
        elif transactional_id is not None:
            raise ArgumentError(f"{guarantee} does not use transactions", "Omit transactional_id.")
        self.consumer = AsyncConsumer(consumer)
        self.producer = AsyncProducer(producer)

    async def run(
        self, apply: Callable[[list[ConsumerRecord]], Awaitable[Batch]], stop: Any, until_end: bool
    ) -> Transformed:
        steps = {
            Guarantee.AT_MOST_ONCE: self._at_most_once,
            Guarantee.AT_LEAST_ONCE: self._at_least_once,
            Guarantee.EXACTLY_ONCE: self._exactly_once,
        }
        step = steps[self.guarantee]
        patience_ms: int | None = None
        self.is_running = True
        try:
            if self.guarantee == Guarantee.EXACTLY_ONCE:
                # Before any offset is read: it ends the transactions of an earlier instance.
                await self.producer.init_transactions()
            if self.topics:
                await self.consumer.subscribe(self.topics)
            else:
                await self.consumer.assign(self.partitions)
            while stop is None or not stop.is_set():
                records = list(await self.consumer.poll(POLL_MS))
                if records:
                    await step(records, apply)
                if until_end and await self.consumer.is_at_end():
                    break
        except asyncio.CancelledError:
            patience_ms = CLOSE_TIMEOUT_MS
            raise
        finally:
            try:
                await self.producer.close(patience_ms)
            finally:
                try:
                    await self.consumer.close(patience_ms)
                finally:
                    self.is_running = False
                    self._cleaned_up.set()
        return self.done

    async def until_cleaned_up(self) -> None:
        """Waits for a run that was interrupted, for a limited time."""
        try:
            await asyncio.wait_for(self._cleaned_up.wait(), CLEAN_UP_S)
        except TimeoutError:
            log.warning(
                "group %s: could not leave in time; its partitions are reassigned after session.timeout.ms",
                self.group_id,
            )

    async def _at_most_once(
        self, records: list[ConsumerRecord], apply: Callable[[list[ConsumerRecord]], Awaitable[Batch]]
    ) -> None:
        if not await self._commit(records):
            return
        self.done.consumed += len(records)
        deliveries = await self._send(await apply(records))
        await self.producer.flush()
        failed = sum(delivery.exception() is not None for delivery in deliveries)
        self.done.failed += failed
        self.done.produced += len(deliveries) - failed

    async def _at_least_once(
        self, records: list[ConsumerRecord], apply: Callable[[list[ConsumerRecord]], Awaitable[Batch]]
    ) -> None:
        deliveries = await self._send(await apply(records))
        await self.producer.flush()
        for delivery in deliveries:
            await delivery  # raises its error before anything is committed
        self.done.produced += len(deliveries)
        if await self._commit(records):
            self.done.consumed += len(records)

    async def _exactly_once(
        self, records: list[ConsumerRecord], apply: Callable[[list[ConsumerRecord]], Awaitable[Batch]]
    ) -> None:
        batch = await apply(records)
        try:
            async with self.producer.transaction():
                deliveries = await self._send(batch)
                group = await self.consumer.group_metadata()
                await self.producer.send_offsets_to_transaction(_following(records), group)
        except TransactionAbortable as error:
            if not error.retriable and error.code not in RETRY_AFTER_ABORT:
                raise
            # Read the partitions that are still assigned again.
            self.done.aborted += 1
            await self._rewind(records)
            return
        self.done.consumed += len(records)
        self.done.produced += len(deliveries)

    async def _send(self, batch: Batch) -> list[Delivery]:
        deliveries = []
        for record, outputs in batch:
            for output in outputs:
                topic = output.topic or self.to
                if topic is None:
                    raise OttlaError(f"{_place(record)}: an output has no topic", "Pass to=, or Output(…, topic=…).")
                delivery = await self.producer.send(
                    topic,
                    output.value,
                    key=record.key if isinstance(output.key, SameKey) else output.key,
                    partition=output.partition,
                    headers=output.headers,
                    timestamp=output.timestamp,
                )
                deliveries.append(delivery)
        return deliveries

    async def _commit(self, records: list[ConsumerRecord]) -> bool:
        """Commits these records. False if the group has rebalanced: partitions still assigned are read again."""
        try:
            await self.consumer.commit(_following(records))
        except KafkaError as error:
            if error.code not in REBALANCED:
                raise
            log.warning(
                "group %s: %d records are read again because the group has rebalanced without this member (%s); if "
                "this happens often, raise max.poll.interval.ms or lower max.poll.records",
                self.group_id,
                len(records),
                error,
            )
            await self._rewind(records)
            return False
        return True

    async def _rewind(self, records: list[ConsumerRecord]) -> None:
        ours = await self.consumer.assignment()
        for partition, offset in _first(records).items():
            if partition in ours:
                await self.consumer.seek(partition, offset)


# --- helpers ----------------------------------------------------------------------------------------------------


def _without_waiting(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    raise AssertionError("the coroutine waits")


def _place(record: ConsumerRecord) -> str:
    return f"while transforming {record.topic}-{record.partition} at offset {record.offset}"


def _outputs(record: ConsumerRecord, result: Any) -> list[Output]:
    if result is None:
        return []
    if isinstance(result, Iterable) and not isinstance(result, Output | str | bytes | bytearray | memoryview | Mapping):
        return [_output(record, each) for each in result]
    return [_output(record, result)]


def _output(record: ConsumerRecord, result: Any) -> Output:
    """One record to produce. None in a list is a tombstone."""
    if isinstance(result, Output):
        return result
    if result is None or isinstance(result, str | bytes | bytearray | memoryview):
        return Output(result)
    problem = f"{_place(record)}: the function returned {type(result).__name__}"
    if isinstance(result, Mapping):
        raise OttlaError(problem, "Return json.dumps(…) of it, or an Output.")
    raise OttlaError(problem, "Return bytes, text, an Output, a list of them, or None.")


def _following(records: list[ConsumerRecord]) -> dict[PartitionLike, OffsetLike]:
    return {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}


def _first(records: list[ConsumerRecord]) -> dict[TopicPartition, int]:
    return {TopicPartition(record.topic, record.partition): record.offset for record in reversed(records)}


def _split(settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the consumer and of the producer."""
    of_consumer, of_producer = settings_of(ConsumerConfig), settings_of(ProducerConfig)
    known = of_consumer | of_producer
    names = {each.attribute: name for name, each in known.items()}
    named = dict(settings or {})
    for attribute, value in keywords.items():
        named[names.get(attribute, attribute)] = value
    chosen = translate(named, known, ())
    for name in chosen:
        if name not in known:
            raise unknown_setting(name, names if name in keywords else known)
    decided = {"group.id", "enable.auto.commit", "transactional.id", "isolation.level"} & chosen.keys()
    if decided:
        raise ConfigError(f"{', '.join(sorted(decided))} is set by transform() itself", "Omit it.")
    shared = settings_of(ClientConfig).keys()
    consumer = {name: value for name, value in chosen.items() if name in of_consumer}
    producer = {name: value for name, value in chosen.items() if name in of_producer or name in shared}
    return consumer, producer
