"""OWNER of a sink on the driver: writes the decision, then commits every part of the batch.

Spark keeps the process that commits from batch to batch. So does this module keep what it knows of a sink: as long as
its producer is not fenced nobody else can have decided anything, and nothing needs to be read again.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ottla.client.producer.producer import AsyncProducer
from ottla.clock import system_clock
from ottla.errors import ErrorCode, KafkaError
from ottla.spark.sink.clients import PATIENCE_MS, Clients, clients, driver_producer, run
from ottla.spark.sink.decisions import (
    DECISION_KEY,
    DONE_KEY,
    Decision,
    Digest,
    Done,
    Part,
    Plan,
    Run,
    SinkState,
    check_owner,
    check_query,
    check_repeat,
    decide_commit,
    is_decided,
    unfinished,
)
from ottla.spark.sink.errors import LostForGood, LostPart
from ottla.spark.sink.failpoints import is_set, reach
from ottla.spark.sink.ledger import Ledger, Names, is_in
from ottla.spark.sink.options import SinkOptions

log = logging.getLogger("ottla.spark")

FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
TRIES = 3
"""How often a driver that was fenced looks whether it is still the owner: a task that reads may have fenced it."""

_drivers: dict[tuple[str, str], "Driver"] = {}
os.register_at_fork(after_in_child=_drivers.clear)


@dataclass(frozen=True)
class Batch:
    """What the tasks of one batch told the driver."""

    query: str
    run: str
    batch: int
    parts: tuple[Part, ...]
    opened_ms: int
    prepared_ms: int
    """When the first part was finished."""
    is_job: bool = False
    call: str = ""
    """Inside foreachBatch, the id of this one write."""
    repeated: Digest | None = None
    """All that there was to write, where this run had settled the batch before."""
    plan: str = ""
    """Tells it from another batch of the same number."""


def driver(options: SinkOptions, sink: str) -> "Driver":
    """The driver of this sink in this process, which outlives a query: it does what the latest options say."""
    key = (options.bootstrap, sink)
    found = _drivers.get(key)
    if found is not None and found.options.kafka != options.kafka:
        run(found.close())  # its connections were made in another way
        found = None
    if found is None:
        found = _drivers[key] = Driver(clients(options), options, Names(sink))
    found.options = options
    return found


class Driver:
    """Decides and commits the batches of one sink."""

    def __init__(self, owned: Clients, options: SinkOptions, names: Names) -> None:
        self.options = options
        self._clients = owned
        self._names = names
        self._producer: AsyncProducer | None = None
        self._state = SinkState()
        self._ledger: Ledger = {}
        """What the ledger held when the state was read; nothing this driver decides itself needs a look at it."""

    async def commit(self, batch: Batch) -> None:
        """Makes a batch visible, once, whatever has happened before."""
        reach("before-decision")
        plan = await self._decide(batch)
        reach("after-decision")
        try:
            await self._finish(plan, batch)
        except BaseException:
            await self.close()  # whatever happened, it is looked at afresh
            raise
        reach("after-commit")

    async def abort(self, batch: Batch, silent: Sequence[int] = ()) -> None:
        """Drops a batch that was not decided. After a decision there is nothing to drop.

        `silent` are the tasks that returned nothing: they failed, or were killed, or still run.
        """
        state = await self._clients.read_state(self._names)
        if is_decided(state, batch.query, batch.batch):
            log.info("sink %s: batch %d is decided, so it is not aborted", self._names.sink, batch.batch)
            return
        await self._clients.end_run(self._names, batch.call or batch.run)
        await _all(self._clients.abort_part(self._names, part) for part in batch.parts)
        before = state.decision
        if before is None or before.owner.run == batch.run or (batch.is_job and before.is_job):
            # Not so where another driver may be at work. Jobs come one at a time: the owner before was the last one.
            # Tasks that died left their transactions open, and with two-phase commit no timeout ends those. What an
            # earlier batch decided and did not commit is not theirs.
            kept = {part.task for part in unfinished(state, {})}
            await self._clients.fence(self._names, [task for task in silent if task not in kept])
            await self._clients.abort_leftovers(self._names, kept)

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(timeout_ms=0)

    # --- deciding -----------------------------------------------------------------------------------------

    async def _decide(self, batch: Batch) -> Plan:
        """The plan for a batch, with its decision on record."""
        for attempt in range(TRIES):
            try:
                return await self._try_to_decide(batch)
            except KafkaError as error:
                await self.close()
                if error.code not in FENCED or attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _try_to_decide(self, batch: Batch) -> Plan:
        if self._producer is None:
            await self._take_over(part.task for part in batch.parts)
        now = system_clock()
        run = Run(batch.run, now, socket.gethostname())
        await self._finish_former(batch)
        plan = decide_commit(
            self._state,
            self._ledger,
            batch.query,
            batch.batch,
            run,
            batch.parts,
            now,
            is_job=batch.is_job,
            plan=batch.plan,
        )
        if batch.repeated is not None:
            check_repeat(plan.decision, batch.repeated)
        if plan.takes_over:
            kept = {part.task for part in (*plan.commit, *plan.abort)}
            left = await self._clients.abort_leftovers(self._names, kept)
            if left:
                log.warning("sink %s: aborted what earlier runs left open: %s", self._names.sink, ", ".join(left))
        if plan.is_new:
            timed = replace(
                plan.decision,
                open_ms=max(0, now - batch.opened_ms) if batch.opened_ms else 0,
                held_ms=max(0, now - batch.prepared_ms) if batch.prepared_ms else 0,
            )
            plan = replace(plan, decision=timed)
            await self._record(timed)
            self._state = replace(self._state, decision=timed)
        return plan

    async def _take_over(self, tasks: Iterable[int]) -> None:
        """Fences every other driver first and reads second: what it reads cannot change behind its back."""
        names, owned = self._names, self._clients
        await owned.ensure_decisions(names)
        producer = driver_producer(self.options, names)
        try:
            await producer.init_transactions(timeout_ms=PATIENCE_MS)
            self._state = await owned.read_state(names)
            decided = self._state.decision.parts if self._state.decision is not None else ()
            self._ledger = await owned.read_ledger(names, {*decided, *tasks})
        except BaseException:
            await producer.close(timeout_ms=0)
            raise
        self._producer = producer

    async def _finish_former(self, batch: Batch) -> None:
        """A decision that is about to be replaced must have come true: Spark never goes back to its batch."""
        former = self._state.decision
        if former is None or (former.query == batch.query and former.batch >= batch.batch):
            return
        check_owner(former, batch.run)
        check_query(former, batch.query, batch.is_job)
        for part in unfinished(self._state, self._ledger):
            try:
                await self._commit_part(former, part)
            except LostPart as lost:
                if not former.is_job and self.options.lost_parts == "fail":
                    raise LostForGood(
                        f"batch {former.batch} was decided and did not come to its end, the query has gone on to batch "
                        f"{batch.batch}, and the broker does not have the part of task {part.task} any more",
                        "Let errors end the function inside foreachBatch, so that Spark repeats the batch. To go on "
                        "without those rows, set lostParts=replace.",
                    ) from lost
                # Whoever wrote that has heard of its failure; this one has rows of its own.
                log.error("sink %s: an earlier write is incomplete: %s", self._names.sink, lost)
        self._state = replace(self._state, done=Done(former.query, former.batch))

    async def _record(self, decision: Decision) -> None:
        assert self._producer is not None
        await self._producer.begin_transaction()
        await self._producer.send(self._names.decisions, decision.to_bytes(), key=DECISION_KEY, partition=0)
        await self._producer.commit_transaction(timeout_ms=PATIENCE_MS)

    # --- committing ---------------------------------------------------------------------------------------

    async def _finish(self, plan: Plan, batch: Batch) -> None:
        started = system_clock()
        await _all(
            [
                self._commit_parts(plan.decision, plan.commit, {part.task for part in batch.parts}),
                *(self._clients.abort_part(self._names, part) for part in plan.abort),
            ]
        )
        now = system_clock()
        done = Done(plan.decision.query, plan.decision.batch, now, now - started)
        if not self._state.is_done():
            await self._record_done(done)
        self._ledger = {}
        log.info(
            "sink %s: batch %d committed, %d parts, held for %d ms, committed in %d ms",
            self._names.sink,
            batch.batch,
            len(plan.commit),
            plan.decision.held_ms,
            done.commit_ms,
        )

    async def _commit_parts(self, decision: Decision, parts: Sequence[Part], told: Collection[int]) -> None:
        if is_set():
            for part in parts:  # one after the other, so that a test can stop between two
                await self._commit_told(decision, part, told)
                reach("between-commits")
            return
        await _all(self._commit_told(decision, part, told) for part in parts)

    async def _commit_told(self, decision: Decision, part: Part, told: Collection[int]) -> None:
        """`told` are the tasks of this run that have a part: what a task finds lost, it writes again and tells of."""
        try:
            await self._commit_part(decision, part)
        except LostPart as lost:
            if part.task in told:
                raise
            raise LostForGood(
                f"batch {decision.batch} was decided, the broker does not have the part of task {part.task} any more, "
                "and no task has its rows now",
                "Start the query with as many tasks as before (minPartitions, spark.sql.shuffle.partitions, "
                "repartition), until the batch is done.",
            ) from lost

    async def _commit_part(self, decision: Decision, part: Part) -> None:
        try:
            await self._clients.commit_part(self._names, part)
        except KafkaError as error:
            if error.retriable:
                raise
            ledger = await self._clients.read_ledger(self._names, [part.task])
            if not is_in(ledger, part.task, decision.query, decision.batch):
                raise LostPart(
                    f"batch {decision.batch} was decided, and the broker does not have the part of task {part.task} "
                    f"any more ({error})",
                    "Start the query again: it writes the part once more. If batches take longer than "
                    "transaction.timeout.ms, raise it or allow two-phase commit on the brokers; where another driver "
                    "runs on this checkpoint, stop it.",
                ) from error

    async def _record_done(self, done: Done) -> None:
        """Not in a transaction: it only spares a reader the ledger, and the ledger has the last word."""
        producer = self._clients.notes()
        await (await producer.send(self._names.decisions, done.to_bytes(), key=DONE_KEY, partition=0))
        self._state = replace(self._state, done=done)


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Everything at once, and all of it to its end; then the first failure."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
