"""OWNER of a sink on the driver: writes the decision, then commits every part of the batch.

Spark keeps the process that commits from batch to batch, and this module caches the state of a sink: as long as its
producer is not fenced, no other driver can have decided anything, and nothing needs to be read again. The states of a
batch are in states.py; `commit` moves it from what the tasks reported to DECIDED and COMMITTED, `abort` to ABORTED.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ottla.clock import monotonic, system_clock
from ottla.errors import KafkaError
from ottla.spark.sink.clients import BROKER_TIMEOUT_MS, FENCED, Clients, clients, driver_producer, run
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
from ottla.spark.sink.failpoints import async_failpoint
from ottla.spark.sink.ledger import Ledger, Names, is_in
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.states import BatchState, move

if TYPE_CHECKING:
    from ottla.client.producer.producer import AsyncProducer

log = logging.getLogger("ottla.spark")

TRIES = 3
"""How often a fenced driver checks whether it still owns the sink: a task that reads may have fenced it."""

drivers: dict[tuple[str, str], "Driver"] = {}
os.register_at_fork(after_in_child=drivers.clear)


@dataclass(frozen=True)
class Batch:
    """What the tasks of one batch reported to the driver."""

    query: str
    run: str
    batch: int
    state: BatchState
    """The strongest state that a task reported."""
    parts: tuple[Part, ...] = ()
    opened_ms: int = 0
    prepared_ms: int = 0
    """When the first part was finished."""
    is_job: bool = False
    call: str = ""
    """Inside foreachBatch, the id of this one write."""
    repeated: Digest | None = None
    """The rows to write this time, if this run had settled the batch before."""
    plan: str = ""
    """Distinguishes it from another batch of the same number."""


def driver(options: SinkOptions, sink: str) -> "Driver":
    """The driver of this sink in this process. It outlives a query and follows the latest options."""
    key = (options.bootstrap, sink)
    found = drivers.get(key)
    if found is not None and found.options.kafka != options.kafka:
        run(found.close())  # its connections use other settings
        found = None
    if found is None:
        found = drivers[key] = Driver(clients(options), options, Names(sink))
    found.options = options
    return found


class Driver:
    """Decides and commits the batches of one sink."""

    def __init__(self, owned: Clients, options: SinkOptions, names: Names) -> None:
        self.options = options
        self._clients = owned
        self._names = names
        self._producer: AsyncProducer | None = None
        """The producer of decisions. Without one this driver does not own the sink, and its state may be stale."""
        self._state = SinkState()
        self._ledger: Ledger = {}
        """The ledger when the state was read. The driver does not need it for its own later decisions."""

    async def commit(self, batch: Batch) -> None:
        """Makes a batch visible exactly once, even after crashes and retries."""
        await async_failpoint("before-decision")
        plan = await self.decide(batch)
        state = move(batch.state, BatchState.DECIDED)
        try:
            await async_failpoint("after-decision")
            await self._finish(plan, batch)
        except BaseException:
            await self.close()  # the next commit reads the stored state again
            raise
        move(state, BatchState.COMMITTED)
        await async_failpoint("after-commit")

    async def abort(self, batch: Batch, silent: Sequence[int] = ()) -> None:
        """Drops a batch that is not decided. After a decision it drops nothing.

        `silent` are the tasks that returned nothing: they failed, were killed, or are still running.
        """
        state = await self._clients.read_state(self._names)
        if is_decided(state, batch.query, batch.batch):
            log.info("sink %s: batch %d is decided and cannot be aborted", self._names.sink, batch.batch)
            return
        await self._clients.end_run(self._names, batch.call or batch.run)
        await _all(self._clients.abort_part(self._names, part) for part in batch.parts)
        before = state.decision
        if before is None or before.owner.run == batch.run or (batch.is_job and before.is_job):
            # Otherwise another driver may be running. Jobs run one at a time: the previous owner was the last one.
            # Tasks that died left their transactions open, and with two-phase commit no timeout ends those. Keep the
            # parts that an earlier batch decided and did not commit.
            kept = {part.task for part in unfinished(state, {})}
            await self._clients.fence(self._names, [task for task in silent if task not in kept])
            await self._clients.abort_leftovers(self._names, kept)
        move(batch.state, BatchState.ABORTED)

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(timeout_ms=0)

    # --- deciding -----------------------------------------------------------------------------------------

    async def decide(self, batch: Batch) -> Plan:
        """The plan for a batch. Its decision is stored when this returns."""
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
        await self._finish_earlier(batch)
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
                log.warning("sink %s: aborted open transactions of earlier runs: %s", self._names.sink, ", ".join(left))
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
        """Fences every other driver, then reads the state: no other driver can change it any more."""
        names, owned = self._names, self._clients
        await owned.ensure_decisions(names)
        producer = driver_producer(self.options, names)
        try:
            await producer.init_transactions(timeout_ms=BROKER_TIMEOUT_MS)
            self._state = await owned.read_state(names)
            decided = self._state.decision.parts if self._state.decision is not None else ()
            self._ledger = await owned.read_ledger(names, {*decided, *tasks})
        except BaseException:
            await producer.close(timeout_ms=0)
            raise
        self._producer = producer

    async def _finish_earlier(self, batch: Batch) -> None:
        """Commits what is left of the decision that this batch replaces: Spark never goes back to that batch."""
        earlier = self._state.decision
        if earlier is None or (earlier.query == batch.query and earlier.batch >= batch.batch):
            return
        check_owner(earlier, batch.run)
        check_query(earlier, batch.query, batch.is_job)
        for part in unfinished(self._state, self._ledger):
            try:
                await self._commit_part(earlier, part, batch.run)
            except LostPart as lost:
                if not earlier.is_job and self.options.lost_parts == "fail":
                    raise LostForGood(
                        f"batch {earlier.batch} was decided and never finished, the query has moved on to batch "
                        f"{batch.batch}, and the broker no longer has the part of task {part.task}",
                        "Do not catch errors of the write inside foreachBatch, so that Spark repeats the batch. To "
                        "continue without those rows, set lostParts=replace.",
                    ) from lost
                # The write that lost it has failed with an error; this batch has its own rows.
                log.error("sink %s: an earlier write is incomplete: %s", self._names.sink, lost)
        self._state = replace(self._state, done=Done(earlier.query, earlier.batch))

    async def _record(self, decision: Decision) -> None:
        assert self._producer is not None
        await self._producer.begin_transaction()
        await self._producer.send(self._names.decisions, decision.to_bytes(), key=DECISION_KEY, partition=0)
        await self._producer.commit_transaction(timeout_ms=BROKER_TIMEOUT_MS)

    # --- committing ---------------------------------------------------------------------------------------

    async def _finish(self, plan: Plan, batch: Batch) -> None:
        """Commits every part concurrently, then records that the batch is done."""
        started = monotonic()
        await _all(
            [
                *(self._commit_or_explain(plan.decision, part, batch) for part in plan.commit),
                *(self._clients.abort_part(self._names, part) for part in plan.abort),
            ]
        )
        took_ms = int((monotonic() - started) * 1000)
        done = Done(plan.decision.query, plan.decision.batch, system_clock(), took_ms)
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

    async def _commit_or_explain(self, decision: Decision, part: Part, batch: Batch) -> None:
        """The tasks of this run have the parts of `batch`. A task that finds its part lost writes it again."""
        try:
            await async_failpoint("before-part-commit")
            await self._commit_part(decision, part, batch.run)
            await async_failpoint("after-part-commit")
        except LostPart as lost:
            if any(part.task == reported.task for reported in batch.parts):
                raise
            raise LostForGood(
                f"batch {decision.batch} was decided, the broker no longer has the part of task {part.task}, and no "
                "task of this run has its rows",
                "Start the query with as many tasks as before (minPartitions, spark.sql.shuffle.partitions, "
                "repartition) until the batch is done.",
            ) from lost

    async def _commit_part(self, decision: Decision, part: Part, run: str) -> None:
        try:
            await self._clients.commit_part(self._names, part)
        except KafkaError as error:
            if error.retriable:
                raise
            ledger = await self._clients.read_ledger(self._names, [part.task])
            if not is_in(ledger, part.task, decision.query, decision.batch):
                await self._clients.check_still_owner(self._names, run)
                raise LostPart(
                    f"batch {decision.batch} was decided, and the broker no longer has the part of task {part.task} "
                    f"({error})",
                    "Restart the query: it writes the part again. If batches take longer than transaction.timeout.ms, "
                    "raise it or allow two-phase commit on the brokers.",
                ) from error

    async def _record_done(self, done: Done) -> None:
        """Not in a transaction: it only saves readers a lookup in the ledger, which is authoritative."""
        producer = self._clients.notes()
        await (await producer.send(self._names.decisions, done.to_bytes(), key=DONE_KEY, partition=0))
        self._state = replace(self._state, done=done)


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Runs everything concurrently to completion, then raises the first failure."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
