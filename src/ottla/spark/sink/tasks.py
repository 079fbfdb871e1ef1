"""OWNER of a task's side of the sink: opens a transaction, writes the rows, leaves it open, tells the driver.

Also the two lesser guarantees: at-least-once writes with a plain producer; at-most-once notes the batch in the ledger
before it writes the first row.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ottla.client.admin.group_model import CommittedOffset
from ottla.client.blocking import Producer
from ottla.clock import system_clock
from ottla.errors import ErrorCode, KafkaError
from ottla.spark.sink.clients import PATIENCE_MS, Clients, clients, run
from ottla.spark.sink.decisions import (
    Digest,
    FinishFormer,
    Part,
    RollForward,
    Skip,
    check_ledger,
    check_same,
    decide_write,
    is_lost,
    is_repeat,
    may_be_decided,
)
from ottla.spark.sink.errors import NotOwner, SinkError
from ottla.spark.sink.failpoints import reach
from ottla.spark.sink.ledger import Names
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.rows import digest, to_records

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.producer.arrow_send import ArrowDelivery

NO_TWO_PHASE = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION)
"""How a broker says that two-phase commit is off, and how one says that it has never heard of it."""

_without_two_phase: set[str] = set()
"""Brokers that have refused it: asked once in the life of a worker."""
_spare: dict[tuple[tuple[str, str], ...], Producer] = {}
"""Transactional producers whose work is done: the next task goes on with their connections, under its own id."""
_first_batches: dict[tuple[str, str], int] = {}
"""(sink, run) -> the first batch that this worker had a task of."""


def _after_fork() -> None:
    _without_two_phase.clear()
    _first_batches.clear()
    _spare.clear()
    _plain.clear()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True)
class Place:
    """Where a task is: which batch of which query, in which run, and which of its tasks."""

    sink: str
    query: str
    run: str
    batch: int
    task: int
    is_job: bool = False
    """A batch write; `query` is the job's id."""
    call: str = ""
    """Inside foreachBatch, the id of this one write: where it is aborted, the run may go on and write again."""


@dataclass(frozen=True)
class Written:
    """What a task tells the driver."""

    part: Part | None = None
    """None where there was nothing to write, or nothing left to."""
    is_settled: bool = False
    """The batch was decided by an earlier run."""
    rows: int = 0
    opened_ms: int = 0
    prepared_ms: int = 0
    repeated: Digest | None = None
    """Of a batch that this run itself has settled: what there was to write now."""


def all_repeated(written: Iterable[Written]) -> Digest | None:
    """All that a batch which this run settled before would be made of now; None where it did not."""
    told = list(written)
    if all(each.repeated is None for each in told):
        return None
    return sum((each.repeated or (each.part.digest if each.part else Digest()) for each in told), Digest())


class Rows:
    """The rows of a task as records, counted as they go by."""

    def __init__(self, batches: "Iterable[pa.RecordBatch]", used: list[str], options: SinkOptions) -> None:
        self._batches = batches
        self._used = used
        self._options = options
        self.digest = Digest()
        self.count = 0

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        for batch in self._batches:
            if not len(batch):
                continue
            records = to_records(batch, self._used, self._options, self.count)
            self.digest = digest(records, self.digest)
            self.count += len(records)
            yield records


# --- exactly once ---------------------------------------------------------------------------------------------


def write_exactly_once(options: SinkOptions, place: Place, rows: Rows) -> Written:
    """Writes the rows into a transaction that stays open for the driver."""
    names, owned = Names(place.sink), clients(options)
    expected: Digest | None = None
    if _must_look(place):
        verdict, is_again = run(_look(owned, names, place))
        if isinstance(verdict, Skip):
            return _settled(rows, is_again)
        if isinstance(verdict, RollForward):
            if run(_roll_forward(owned, names, place, verdict.part, replaces=options.lost_parts == "replace")):
                return _settled(rows, is_again)
            expected = verdict.part.digest
        if isinstance(verdict, FinishFormer):
            run(
                _roll_forward(owned, names, place, verdict.part, replaces=True)
            )  # what is lost is lost; the driver tells of it
    return write_part(options, place, rows, note(place.query, place.batch), expected)


def _must_look(place: Place) -> bool:
    if place.is_job or place.call:
        return True  # nobody promises that such a write comes once in a run
    first_batch = _first_batches.setdefault((place.sink, place.run), place.batch)
    return may_be_decided(first_batch, place.batch)


async def _look(owned: Clients, names: Names, place: Place) -> tuple[Any, bool]:
    """What to do, and whether this run has done it before."""
    state = await owned.read_state(names)
    ledger = await owned.read_ledger(names, [place.task])
    verdict = decide_write(state, ledger, place.query, place.batch, place.task, is_job=place.is_job)
    return verdict, bool(place.call) and is_repeat(state, place.query, place.batch, place.run)


def _settled(rows: Rows, is_again: bool) -> Written:
    """There is nothing to write; a second write in one run is told from another one by its rows."""
    if not is_again:
        return Written(is_settled=True)
    for _ in rows:
        pass
    return Written(is_settled=True, repeated=rows.digest)


async def _roll_forward(owned: Clients, names: Names, place: Place, part: Part, *, replaces: bool) -> bool:
    """Commits a part that was decided; False where it is lost, or with `replaces` is taken for lost."""
    try:
        await owned.commit_part(names, part)
        return True
    except KafkaError as error:
        if error.retriable:
            raise
        ledger = await owned.read_ledger(names, [place.task])
        is_known = replaces or error.code != ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return not is_lost(ledger, place.task, place.query, place.batch, is_known=is_known)


def write_part(
    options: SinkOptions,
    place: Place,
    rows: Rows,
    entry: CommittedOffset | None,
    expected: Digest | None = None,
) -> Written:
    """The rows and the ledger's entry in one transaction, stored and left open.

    With `expected` they must be the same rows as before.
    """
    names, task = Names(place.sink), place.task
    upcoming = iter(rows)
    first = next(upcoming, None)
    if first is None and expected is None:
        return Written()
    opened_ms = system_clock()
    producer = open_producer(options, names.task(task))
    try:
        if run(clients(options).has_ended(names, place.call or place.run)):
            raise SinkError(
                "this run was aborted while the task was on its way", "Nothing was written; start it again."
            )
        producer.begin_transaction()
        if entry is not None:
            producer.send_offsets_to_transaction({names.entry(task): entry}, names.group(task), timeout_ms=PATIENCE_MS)
        if first is not None:  # else the ledger's entry alone stands for the part that was decided
            send(producer, first, options)
        for records in upcoming:
            send(producer, records, options)
        if expected is not None and options.lost_parts == "fail":
            check_same(expected, rows.digest, task)
        prepared = producer.prepare_transaction(timeout_ms=PATIENCE_MS)
    except BaseException as error:
        _give_up(producer)
        if isinstance(error, KafkaError):
            raise explained(error, options) from error
        raise
    reach("after-prepare")
    _put_aside(producer, options)
    part = Part(task, prepared.producer_id, prepared.producer_epoch, rows.digest)
    return Written(part, rows=rows.count, opened_ms=opened_ms, prepared_ms=system_clock())


def note(query: str, batch: int) -> CommittedOffset:
    """The ledger's entry: this task has written this batch."""
    return CommittedOffset(batch + 1, metadata=query)


def _give_up(producer: Producer) -> None:
    """Ends what was begun; the next attempt would do it too, but nobody may ever make one."""
    try:
        producer.close(timeout_ms=5_000)
    except Exception:
        pass


def open_producer(options: SinkOptions, transactional_id: str) -> Producer:
    """A producer that has taken its transactional id over: older attempts are fenced, what they left is aborted."""
    wanted = options.two_phase_commit
    if wanted == "required" or (wanted == "auto" and options.bootstrap not in _without_two_phase):
        try:
            return _initialised(options, transactional_id, two_phase=True)
        except KafkaError as error:
            if error.code not in NO_TWO_PHASE:
                raise explained(error, options) from error
            if wanted == "required":
                raise SinkError(
                    f"twoPhaseCommit=required, and the brokers do not allow it ({error})",
                    "Set transaction.two.phase.commit.enable=true on the brokers, or twoPhaseCommit=auto.",
                ) from None
            _without_two_phase.add(options.bootstrap)
    try:
        return _initialised(options, transactional_id, timeout_ms=options.timeout_ms)
    except KafkaError as error:
        if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise explained(error, options) from error
    longest_ms = run(_longest_timeout(clients(options)))
    if options.has_timeout or longest_ms is None:
        raise SinkError(
            f"kafka.transaction.timeout.ms is {options.timeout_ms}, and the brokers allow no more than "
            f"{longest_ms if longest_ms is not None else 'transaction.max.timeout.ms'}",
            "Lower it, or raise transaction.max.timeout.ms on the brokers. It must be longer than the longest batch.",
        )
    try:
        return _initialised(options, transactional_id, timeout_ms=longest_ms)
    except KafkaError as error:
        raise explained(error, options) from error


def _initialised(
    options: SinkOptions, transactional_id: str, *, two_phase: bool = False, timeout_ms: int | None = None
) -> Producer:
    settings = options.producer_settings()
    if two_phase:
        settings["transaction.two.phase.commit.enable"] = "true"
    else:
        settings["transaction.timeout.ms"] = str(timeout_ms)
    producer = _spare.pop(_key(settings), None)
    try:
        if producer is None:
            producer = Producer({**settings, "transactional.id": transactional_id})
        else:
            producer.continue_as(transactional_id)
        producer.init_transactions(timeout_ms=PATIENCE_MS)
    except BaseException:
        if producer is not None:
            producer.close(timeout_ms=0)
        raise
    return producer


def _put_aside(producer: Producer, options: SinkOptions) -> None:
    """Keeps a producer that has left its transaction prepared."""
    settings = options.producer_settings()
    if producer.config.transaction_two_phase_commit_enable:
        settings["transaction.two.phase.commit.enable"] = "true"
    else:
        settings["transaction.timeout.ms"] = str(producer.config.transaction_timeout_ms)
    before = _spare.pop(_key(settings), None)
    if before is not None:
        before.close()
    _spare[_key(settings)] = producer


def _key(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))


async def _longest_timeout(owned: Clients) -> int | None:
    """The brokers' transaction.max.timeout.ms, where they tell."""
    try:
        cluster = await owned.admin.describe_cluster()
        entries = await owned.admin.describe_configs(
            "broker", str(cluster.brokers[0].node_id), names=["transaction.max.timeout.ms"]
        )
        return int(entries[0].value or 0) or None
    except (KafkaError, IndexError, ValueError):
        return None


# --- at least once, at most once ------------------------------------------------------------------------------

_plain: dict[tuple[tuple[str, str], ...], Producer] = {}
"""Producers that stay from batch to batch."""


def write_at_least_once(options: SinkOptions, rows: Rows) -> Written:
    """Everything is stored when this returns; a retry of the task writes it again."""
    started_ms = system_clock()
    upcoming = iter(rows)
    first = next(upcoming, None)
    if first is None:
        return Written()
    settings = options.producer_settings()
    producer = _plain.pop(_key(settings), None) or Producer(settings)
    try:
        waiting = deque([send(producer, first, options)])
        for records in upcoming:
            waiting.append(send(producer, records, options))
            while waiting and waiting[0].done():  # what is stored need not be remembered
                waiting.popleft().result()
        producer.flush()
        for sent in waiting:
            sent.result()
    except BaseException as error:
        producer.close(timeout_ms=0)
        if isinstance(error, KafkaError):
            raise explained(error, options) from error
        raise
    _plain[_key(settings)] = producer  # one that failed is not used again
    return Written(rows=rows.count, opened_ms=started_ms, prepared_ms=system_clock())


def write_at_most_once(options: SinkOptions, place: Place, rows: Rows) -> Written:
    """Notes the batch first and writes second: what a crash interrupts is lost, and never written twice."""
    names, owned = Names(place.sink), clients(options)
    run(owned.ensure_decisions(names))
    producer = open_producer(replace(options, two_phase_commit="off"), names.task(place.task))
    try:
        # The id is taken over, so no other attempt can note the batch between this look and the note.
        ledger = run(owned.read_ledger(names, [place.task]))
        check_ledger(ledger, place.query, place.batch)
        entry = ledger.get(place.task)
        if entry is not None and entry.query != place.query:
            raise NotOwner(
                f"the sink {place.sink} belongs to another query: {entry.query}, and this is {place.query}",
                "Give this query a sinkName of its own.",
            )
        if entry is not None and entry.has(place.query, place.batch):
            return Written(is_settled=True)
        producer.begin_transaction()
        noted = {names.entry(place.task): note(place.query, place.batch)}
        producer.send_offsets_to_transaction(noted, names.group(place.task))
        producer.commit_transaction()
    finally:
        producer.close()
    reach("after-note")
    return write_at_least_once(options, rows)


# --- sending --------------------------------------------------------------------------------------------------


def send(producer: Producer, records: "pa.RecordBatch", options: SinkOptions) -> "ArrowDelivery":
    """Hands records over; waits only for room and for their topics."""
    return producer.send_arrow(records, options.topic)


def explained(error: KafkaError, options: SinkOptions) -> Exception:
    """What a broker's refusal means for the user."""
    if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
        return SinkError(f"{error}", "Create the topic, or correct its name or the column partition.")
    if error.code == ErrorCode.MESSAGE_TOO_LARGE:
        return SinkError(
            f"{error}", "Raise kafka.max.request.size here, and max.message.bytes of the topic, or make rows smaller."
        )
    if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return SinkError(f"{error}", "Allow this user to write to the topic.")
    if error.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION):
        return SinkError(f"{error}", f"Are the brokers at {options.bootstrap} there?")
    return error
