"""OWNER of a task's side of the sink: opens a transaction, writes the rows, leaves it prepared, reports to the driver.

Also the two weaker guarantees: at-least-once writes with a plain producer; at-most-once records the batch in the ledger
before it writes the first row.
"""

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ottla.client.core.model import CommittedOffset
from ottla.clock import system_clock
from ottla.errors import ErrorCode, KafkaError
from ottla.spark.sink.clients import BROKER_TIMEOUT_MS, FENCED, Clients, clients, run
from ottla.spark.sink.decisions import (
    Digest,
    FinishEarlier,
    Part,
    RollForward,
    Skip,
    Write,
    check_claim,
    check_ledger,
    check_same,
    decide_write,
    is_lost,
    is_repeat,
    may_be_decided,
)
from ottla.spark.sink.errors import NotOwner, SinkError
from ottla.spark.sink.failpoints import failpoint
from ottla.spark.sink.ledger import Names
from ottla.spark.sink.producers import explained, keep_plain, open_producer, put_aside, take_plain
from ottla.spark.sink.rows import digest, to_records
from ottla.spark.sink.states import BatchState, move

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.blocking import Producer
    from ottla.client.producer.arrow_send import ArrowDelivery
    from ottla.spark.sink.options import SinkOptions

first_batches: dict[tuple[str, str], int] = {}
"""(sink, run) -> the first batch that this worker had a task of."""
os.register_at_fork(after_in_child=first_batches.clear)


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
    """Inside foreachBatch, the id of this one write: if it is aborted, the run may continue and write again."""

    @property
    def has_run(self) -> bool:
        """Whether the run is known, and not just this one write."""
        return bool(self.run) and self.run != self.call


@dataclass(frozen=True)
class Written:
    """What a task reports to the driver."""

    state: BatchState
    """EMPTY, STORED, SETTLED or PREPARED."""
    part: Part | None = None
    """In state PREPARED: the task's open transaction."""
    rows: int = 0
    opened_ms: int = 0
    prepared_ms: int = 0
    repeated: Digest | None = None
    """In state SETTLED, if this same run settled the batch before: the rows that there were to write this time."""


def all_repeated(written: Iterable[Written]) -> Digest | None:
    """The rows of a batch that this run has settled before and now writes again; None for any other batch."""
    reports = list(written)
    if all(report.repeated is None for report in reports):
        return None
    return sum((each.repeated or (each.part.digest if each.part else Digest()) for each in reports), Digest())


class Rows:
    """The rows of a task as records, counted while they are read."""

    def __init__(self, batches: "Iterable[pa.RecordBatch]", used: list[str], options: "SinkOptions") -> None:
        self._batches = batches
        self._used = used
        self._options = options
        self.digest = Digest()
        self.count = 0

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        for batch in self._batches:
            if not len(batch):
                continue
            records = to_records(batch, self._used, self.count)
            self.digest = digest(records, self.digest)
            self.count += len(records)
            yield records


# --- exactly once ---------------------------------------------------------------------------------------------


def write_exactly_once(options: "SinkOptions", place: Place, rows: Rows) -> Written:
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
        if isinstance(verdict, FinishEarlier):
            # If that part is lost, the driver reports it; this task has its own rows to write.
            run(_roll_forward(owned, names, place, verdict.part, replaces=True))
    return write_part(options, place, rows, note(place.query, place.batch), expected)


def _must_look(place: Place) -> bool:
    if place.is_job or place.call:
        return True  # such a write can happen more than once in a run
    first_batch = first_batches.setdefault((place.sink, place.run), place.batch)
    return may_be_decided(first_batch, place.batch)


async def _look(owned: Clients, names: Names, place: Place) -> tuple[Write | Skip | RollForward | FinishEarlier, bool]:
    """What to do, and whether this run has done it before."""
    state = await owned.read_state(names)
    check_claim(state.claim, place.run)
    ledger = await owned.read_ledger(names, [place.task])
    verdict = decide_write(state, ledger, place.query, place.batch, place.task, is_job=place.is_job)
    if place.has_run and not isinstance(verdict, Skip):
        await owned.claim(names, state, place.run)
    return verdict, bool(place.call) and is_repeat(state, place.query, place.batch, place.run)


def _settled(rows: Rows, is_again: bool) -> Written:
    """Nothing is written. For a second write in one run the driver compares the rows with those of the first."""
    state = move(BatchState.STARTED, BatchState.SETTLED)
    if not is_again:
        return Written(state)
    for _ in rows:
        pass
    return Written(state, repeated=rows.digest)


async def _roll_forward(owned: Clients, names: Names, place: Place, part: Part, *, replaces: bool) -> bool:
    """Commits a decided part. False if it is lost, or if that is unknown and `replaces` is set."""
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
    options: "SinkOptions",
    place: Place,
    rows: Rows,
    entry: CommittedOffset | None,
    expected: Digest | None = None,
) -> Written:
    """Writes the rows and the ledger entry in one transaction, and leaves it prepared.

    With `expected` they must be the same rows as before.
    """
    names, task, state = Names(place.sink), place.task, BatchState.STARTED
    upcoming = iter(rows)
    first = next(upcoming, None)
    if first is None and expected is None:
        return Written(move(state, BatchState.EMPTY))
    opened_ms = system_clock()
    producer = open_producer(options, names.task(task))
    try:
        if run(clients(options).has_ended(names, place.call or place.run)):
            raise SinkError("this run was aborted before the task began to write", "Nothing was written. Run it again.")
        state = move(state, BatchState.WRITING)
        producer.begin_transaction()
        if entry is not None:
            producer.send_offsets_to_transaction(
                {names.entry(task): entry}, names.group(task), timeout_ms=BROKER_TIMEOUT_MS
            )
        if first is not None:  # without rows the ledger entry alone replaces the part that was decided
            send(producer, first, options)
        for records in upcoming:
            send(producer, records, options)
        if expected is not None and options.lost_parts == "fail":
            check_same(expected, rows.digest, task)
        prepared = producer.prepare_transaction(timeout_ms=BROKER_TIMEOUT_MS)
        state = move(state, BatchState.PREPARED)
    except BaseException as error:
        # Closing aborts the open transaction. The next attempt would abort it too, but there may be none.
        with contextlib.suppress(Exception):
            producer.close(timeout_ms=5_000)
        if isinstance(error, KafkaError):
            if entry is not None and error.code in FENCED:
                run(clients(options).check_still_owner(names, place.run))
            raise explained(error, options) from error
        raise
    failpoint("after-prepare", options.topic)
    put_aside(producer, options)
    part = Part(task, prepared.producer_id, prepared.producer_epoch, rows.digest)
    return Written(state, part, rows=rows.count, opened_ms=opened_ms, prepared_ms=system_clock())


def note(query: str, batch: int) -> CommittedOffset:
    """The ledger entry: this task has written this batch."""
    return CommittedOffset(batch + 1, metadata=query)


# --- at least once, at most once ------------------------------------------------------------------------------


def write_at_least_once(options: "SinkOptions", rows: Rows) -> Written:
    """Everything is stored when this returns; a retry of the task writes it again."""
    started_ms, state = system_clock(), BatchState.STARTED
    upcoming = iter(rows)
    first = next(upcoming, None)
    if first is None:
        return Written(move(state, BatchState.EMPTY))
    state = move(state, BatchState.WRITING)
    producer = take_plain(options)
    try:
        waiting = deque([send(producer, first, options)])
        for records in upcoming:
            waiting.append(send(producer, records, options))
            while waiting and waiting[0].done():  # stored deliveries need not be kept
                waiting.popleft().result()
        producer.flush()
        for sent in waiting:
            sent.result()
        failpoint("after-store", options.topic)
    except BaseException as error:
        producer.close(timeout_ms=0)  # a producer that failed is not used again
        if isinstance(error, KafkaError):
            raise explained(error, options) from error
        raise
    keep_plain(producer, options)
    state = move(state, BatchState.STORED)
    return Written(state, rows=rows.count, opened_ms=started_ms, prepared_ms=system_clock())


def write_at_most_once(options: "SinkOptions", place: Place, rows: Rows) -> Written:
    """Records the batch, then writes: rows that a crash interrupts are lost, and never written twice."""
    names, owned = Names(place.sink), clients(options)
    run(owned.ensure_decisions(names))
    producer = open_producer(replace(options, two_phase_commit="off"), names.task(place.task))
    try:
        # This attempt owns the id, so no other attempt can record the batch between this check and the record.
        ledger = run(owned.read_ledger(names, [place.task]))
        check_ledger(ledger, place.query, place.batch)
        entry = ledger.get(place.task)
        if entry is not None and entry.query != place.query:
            raise NotOwner(
                f"the sink {place.sink} belongs to another query: {entry.query}; this is {place.query}",
                "Give this query its own sinkName.",
            )
        if entry is not None and entry.has(place.query, place.batch):
            return Written(move(BatchState.STARTED, BatchState.SETTLED))
        producer.begin_transaction()
        noted = {names.entry(place.task): note(place.query, place.batch)}
        producer.send_offsets_to_transaction(noted, names.group(place.task))
        producer.commit_transaction()
    finally:
        producer.close()
    failpoint("after-note")
    return write_at_least_once(options, rows)


# --- sending --------------------------------------------------------------------------------------------------


def send(producer: "Producer", records: "pa.RecordBatch", options: "SinkOptions") -> "ArrowDelivery":
    """Sends records. Waits only for buffer space and for topic metadata."""
    return producer.send_arrow(records, options.topic)
