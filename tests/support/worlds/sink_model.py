"""A model of the exactly-once sink's world: brokers, Spark, tasks and drivers that crash, as seeded generators.

The rules are the production code (`ottla.spark.sink.decisions`, `ottla.spark.sink.ledger`); only the rest is
modelled. At each `yield` another process may run, crash or time out.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ottla.spark.sink import decisions
from ottla.spark.sink.decisions import Digest, Done, FinishEarlier, Part, RollForward, Run, SinkState, Skip
from ottla.spark.sink.errors import LostPart, NotOwner
from ottla.spark.sink.ledger import Entry, Ledger

Row = tuple[int, int, int]
"""Batch, task, and the attempt that made it (0 where a query gives the same rows every time)."""
Steps = Iterator[None]
QUERY = "query"


def digest_of(row: Row) -> Digest:
    batch, task, attempt = row
    return Digest(rows=1, size_bytes=task, byte_sum=1000 * batch + attempt)


class Fenced(Exception):
    """The broker knows a newer epoch."""


class Forgotten(Fenced):
    """The broker does not know the transactional id, or knows it of another producer."""


class ConcurrentUpdate(Exception):
    """Spark detected another writer of its checkpoint."""


@dataclass
class Transaction:
    """One transactional id as its coordinator knows it."""

    producer_id: int
    epoch: int = -1
    rows: list[Row] | None = None
    """None while no transaction is open."""
    entry: tuple[int, Entry] | None = None
    committed_epoch: int = -1


@dataclass
class Broker:
    """Transactions, the ledger, the decisions topic, and the output."""

    transactions: dict[int, Transaction] = field(default_factory=dict)
    ledger: dict[int, Entry] = field(default_factory=dict)
    state: SinkState = field(default_factory=SinkState)
    driver_epoch: int = 0
    output: list[Row] = field(default_factory=list)
    producer_ids: int = 0

    def init(self, task: int) -> tuple[int, int]:
        """InitProducerId: fences and aborts."""
        if task not in self.transactions:
            self.producer_ids += 1
            self.transactions[task] = Transaction(self.producer_ids)
        known = self.transactions[task]
        known.epoch += 1
        known.rows = known.entry = None
        return known.producer_id, known.epoch

    def write(self, task: int, epoch: int, rows: list[Row], entry: Entry) -> None:
        known = self.transactions[task]
        if known.epoch != epoch:
            raise Fenced
        known.rows, known.entry = list(rows), (task, entry)

    def end(self, part: Part, commit: bool) -> None:
        """EndTxn, which can be retried."""
        known, epoch = self.transactions.get(part.task), part.producer_epoch
        if known is None or known.producer_id != part.producer_id:
            raise Forgotten
        if known.committed_epoch == epoch and known.epoch == epoch + 1 and known.rows is None and commit:
            return
        if known.epoch != epoch or known.rows is None:
            raise Fenced
        if commit:
            self.output += known.rows
            assert known.entry is not None
            self.ledger[known.entry[0]] = known.entry[1]
            known.committed_epoch = epoch
        known.rows = known.entry = None
        known.epoch += 1

    def time_out(self, task: int) -> None:
        known = self.transactions[task]
        if known.rows is not None:
            known.rows = known.entry = None
            known.epoch += 1

    def forget(self) -> None:
        """A week passes: idle transactional ids expire, and so do offsets of a group without members."""
        for task in [task for task, known in self.transactions.items() if known.rows is None]:
            del self.transactions[task]
            self.ledger.pop(task, None)


@dataclass
class Checkpoint:
    """Spark's two logs, on a file system that creates a file once."""

    planned: int = -1
    committed: int = -1

    def plan(self, batch: int) -> None:
        if self.planned >= batch:
            raise ConcurrentUpdate
        self.planned = batch

    def commit(self, batch: int) -> None:
        if self.committed >= batch:
            raise ConcurrentUpdate
        self.committed = batch


@dataclass
class Rules:
    """Rules that a test can disable, to see that it then fails."""

    decide_write: Callable[..., object] = decisions.decide_write
    decide_commit: Callable[..., decisions.Plan] = decisions.decide_commit
    may_be_decided: Callable[[int, int], bool] = decisions.may_be_decided
    is_lost: Callable[..., bool] = decisions.is_lost
    writes_decision_first: bool = True


class World:
    """One sink, one query, some runs of it, and injected failures."""

    TASKS, BATCHES = 3, 3

    def __init__(
        self,
        seed: int,
        *,
        is_deterministic: bool = True,
        times_out: bool = True,
        has_zombies: bool = True,
        goes_on: bool = False,
        stands_still: bool = False,
        rules: Rules | None = None,
    ) -> None:
        """Without zombies there is no second driver either, and a task that Spark gives up on is really gone.

        `goes_on`: the batches are written inside foreachBatch, by a function that ignores some failures.
        `stands_still`: it may be a week before the query is started again.
        """
        self.random = random.Random(seed)
        self.rules = rules or Rules()
        self.is_deterministic = is_deterministic
        self.times_out = times_out
        self.has_zombies = has_zombies
        self.goes_on = goes_on
        self.stands_still = stands_still
        self.decided: dict[int, set[Digest]] = {}
        """What each batch was made of when it was first decided."""
        self.broker = Broker()
        self.checkpoint = Checkpoint()
        self.attempts = 0
        self.runs = 0
        self.alive: dict[str, Steps] = {}
        """The running drivers: one, unless a second is started by mistake."""
        self.zombies: list[Steps] = []
        """Tasks whose driver is gone, or that Spark has given up on."""
        self.lost: list[LostPart] = []
        self.owners_refused = 0

    # --- Spark --------------------------------------------------------------------------------------------

    def query(self, run: str) -> Steps:
        """One run of the query, from the checkpoint on."""
        first = max(self.checkpoint.committed + 1, self.checkpoint.planned)
        for batch in range(first, self.BATCHES):
            if self.checkpoint.planned < batch:
                self.checkpoint.plan(batch)
            yield
            parts: list[Part] = []
            for task in range(self.TASKS):
                yield from self.task(run, first, batch, task, parts)
            if self.random.random() < 0.1:
                yield from self.abort(run, batch, parts)
                return
            if self.goes_on and batch < self.BATCHES - 1 and self.random.random() < 0.3:
                yield from self.half(self.commit(run, batch, parts))
            else:
                yield from self.commit(run, batch, parts)
            if self.random.random() < 0.1:
                yield from self.commit(run, batch, parts)  # Spark may call it twice
            self.checkpoint.commit(batch)
            yield

    def half(self, steps: Steps) -> Steps:
        """Fails partway, and the caller ignores it."""
        for _, _ in zip(range(self.random.randrange(8)), steps, strict=False):
            yield

    def task(self, run: str, first: int, batch: int, task: int, parts: list[Part]) -> Steps:
        """Attempts until one returns. Abandoned attempts may continue as zombies."""
        while True:
            self.attempts += 1
            returned: list[Part | None] = []
            attempt = self.attempt(first, batch, task, 0 if self.is_deterministic else self.attempts, returned)
            for _ in attempt:
                yield
                if self.random.random() < 0.03:
                    if self.has_zombies and self.random.random() < 0.5:
                        self.zombies.append(attempt)
                    break
            if returned:
                if returned[0] is not None:
                    parts.append(returned[0])
                return

    # --- a task -------------------------------------------------------------------------------------------

    def attempt(self, first: int, batch: int, task: int, attempt: int, returned: list[Part | None]) -> Steps:
        broker, expected = self.broker, None
        row: Row = (batch, task, attempt)
        digest = digest_of(row)
        if self.goes_on or self.rules.may_be_decided(first, batch):
            state = broker.state
            yield
            ledger = dict(broker.ledger)
            yield
            verdict = self.rules.decide_write(state, ledger, QUERY, batch, task)
            if isinstance(verdict, Skip):
                returned.append(None)
                return
            if isinstance(verdict, FinishEarlier):
                with contextlib.suppress(Fenced):
                    broker.end(verdict.part, True)
            if isinstance(verdict, RollForward):
                try:
                    broker.end(verdict.part, True)
                    returned.append(None)
                    return
                except Fenced as error:
                    yield
                    is_known = not isinstance(error, Forgotten)
                    if not self.rules.is_lost(broker.ledger, task, QUERY, batch, is_known=is_known):
                        returned.append(None)
                        return
                    expected = verdict.part.digest
        yield
        producer_id, epoch = broker.init(task)
        yield
        if expected is not None:
            decisions.check_same(expected, digest, task)
        try:
            broker.write(task, epoch, [row], Entry(batch + 1, QUERY))
        except Fenced:
            return  # the attempt fails
        yield
        returned.append(Part(task, producer_id, epoch, digest))

    # --- the driver ---------------------------------------------------------------------------------------

    def commit(self, run: str, batch: int, parts: list[Part]) -> Steps:
        broker = self.broker
        for _ in range(3):
            broker.driver_epoch += 1
            epoch = broker.driver_epoch
            yield
            state = broker.state
            ledger = dict(broker.ledger)
            yield
            yield from self.finish_former(state, ledger, batch)
            plan = self.rules.decide_commit(state, ledger, QUERY, batch, Run(run, 0, "host"), parts, 0)
            if plan.takes_over:
                keep = {part.task for part in (*plan.commit, *plan.abort)}
                for task in set(broker.transactions) - keep:
                    broker.time_out(task)
                yield
            if self.rules.writes_decision_first:
                if plan.is_new and broker.driver_epoch != epoch:
                    continue  # fenced: check the owner again
                if plan.is_new:
                    broker.state = replace(broker.state, decision=plan.decision)
                    self.decided.setdefault(batch, {part.digest for part in plan.decision.parts.values()})
            yield
            yield from self.finish(plan, batch)
            return
        raise Fenced

    def finish_former(self, state: SinkState, ledger: Ledger, batch: int) -> Steps:
        if state.decision is None or state.decision.batch >= batch:
            return
        for part in decisions.unfinished(state, ledger):
            yield from self.commit_part(part, state.decision.batch)

    def commit_part(self, part: Part, batch: int) -> Steps:
        try:
            self.broker.end(part, True)
        except Fenced:
            yield
            entry = self.broker.ledger.get(part.task)
            if entry is None or not entry.has(QUERY, batch):
                raise LostPart(f"{part}") from None
        yield

    def finish(self, plan: decisions.Plan, batch: int) -> Steps:
        broker = self.broker
        for part in self.random.sample(plan.commit, len(plan.commit)):
            yield from self.commit_part(part, batch)
        for part in plan.abort:
            try:
                broker.end(part, False)
            except Fenced:
                pass
            yield
        broker.state = replace(broker.state, done=Done(QUERY, batch))
        yield

    def abort(self, run: str, batch: int, parts: list[Part]) -> Steps:
        state = self.broker.state
        yield
        if decisions.is_decided(state, QUERY, batch):
            return
        for part in parts:
            try:
                self.broker.end(part, False)
            except Fenced:
                pass
            yield

    # --- what happens -------------------------------------------------------------------------------------

    def play(self, moves: int = 400) -> None:
        """Random steps, then no more failures: a last run completes the query."""
        for _ in range(moves):
            self.move()
        self.zombies = [zombie for zombie in self.zombies if self.random.random() < 0.5]
        while self.zombies:
            self.step_zombie()
        self.alive.clear()
        for _ in range(10):
            if self.checkpoint.committed == self.BATCHES - 1 or self.lost_for_good():
                return
            name = self.start()
            while name in self.alive:
                self.step(name)
        raise AssertionError("the query does not complete")

    def lost_for_good(self) -> bool:
        """Whether the query stopped for good: a restart would not help."""
        return any("have forgotten" in str(lost) or not self.is_deterministic for lost in self.lost)

    def move(self) -> None:
        chance = self.random.random()
        if not self.alive and not self.zombies and self.stands_still and chance < 0.2:
            self.broker.forget()
        elif not self.alive or (chance < 0.008 and self.has_zombies):
            self.start()
        elif chance < 0.02:
            self.alive.pop(self.random.choice(list(self.alive)))  # a driver is killed
        elif chance < 0.06 and self.times_out and self.broker.transactions:
            self.broker.time_out(self.random.choice(list(self.broker.transactions)))
        elif chance < 0.15 and self.zombies:
            self.step_zombie()
        else:
            self.step(self.random.choice(list(self.alive)))

    def start(self) -> str:
        self.runs += 1
        name = f"run-{self.runs}"
        self.alive[name] = self.query(name)
        return name

    def step(self, name: str) -> None:
        try:
            next(self.alive[name])
        except LostPart as lost:
            del self.alive[name]
            self.lost.append(lost)
        except NotOwner:
            del self.alive[name]
            self.owners_refused += 1
        except (StopIteration, ConcurrentUpdate, Fenced):
            del self.alive[name]

    def step_zombie(self) -> None:
        zombie = self.random.choice(self.zombies)
        try:
            next(zombie)
        except (StopIteration, NotOwner, LostPart, Fenced):
            self.zombies.remove(zombie)
