"""Clients of a simulated cluster: senders, transactional senders, readers and group members, with their histories.

Every value is a unique number. `Load.history` has what R2's checker needs (ottla.verify.checks.checker).
"""

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

from ottla.client.transactions.errors import TransactionAbortable
from ottla.errors import ErrorCode, KafkaError
from ottla.testing.cluster_world import ClusterWorld
from ottla.verify.history import COMMITTED, FAIL, OK, POLL, SEND, UNCOMMITTED, Operation, Read, Sent, partition_name
from tests.support.worlds.cluster_ledger import Ledger

if TYPE_CHECKING:
    from ottla.client.producer.speedups import Delivery

PLAIN, BOUND = "plain", "bound"
"""The topic of idempotent senders, and the topic of transactional senders."""
FOREVER_MS = 3_600_000
PATIENCE_S = 600
"""How long clients may take to finish after the last fault."""
QUICK = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200, "retry_backoff_ms": 20}


class Load:
    """What the clients of one story did, and the answers they got."""

    def __init__(self, world: ClusterWorld, ledger: Ledger, *, partitions: int = 2) -> None:
        self.world = world
        self.ledger = ledger
        self.partitions = partitions
        self.values = itertools.count(1)
        self.history: list[Operation] = []
        self.sent: dict[tuple[int, int], list[int]] = {}
        """The values of each idempotent sender for each partition, in order."""
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """(partition, offset) of each acknowledged value of an idempotent sender, known when its sender is done."""
        self._deliveries: list[tuple[int, Delivery]] = []
        """Of idempotent senders, with their partitions."""
        self.committed_offsets: dict[int, int] = {}
        """The highest acknowledged commit of the group, by partition."""
        self.seen_by_group: set[int] = set()
        self.generations: set[int] = set()
        """The generations of the group in which a member has read records."""
        self.failed_commits = 0
        self.ending = False
        self.workers = itertools.count()
        self._senders: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []

    def start(self, coroutine: Any) -> None:
        """Something that has to be done before the end of the story."""
        self._senders.append(asyncio.get_running_loop().create_task(coroutine))

    @property
    def is_sending(self) -> bool:
        return not all(task.done() for task in self._senders)

    def _read_on(self, coroutine: Any) -> None:
        self._readers.append(asyncio.get_running_loop().create_task(coroutine))

    async def finish(self) -> None:
        """Waits until every sender has sent everything, then ends the readers."""
        for name, tasks in (("senders", self._senders), ("readers", self._readers)):
            if tasks:
                done, pending = await asyncio.wait(tasks, timeout=PATIENCE_S)
                assert not pending, f"{len(pending)} {name} did not finish within {PATIENCE_S} s"
                for task in done:
                    task.result()
            self.ending = True

    # --- clients ------------------------------------------------------------------------------------------

    def sends(self, count: int, *, pause_s: float = 0.03) -> None:
        """Starts an idempotent producer with acks=all that sends `count` records."""
        worker = next(self.workers)
        self.start(self._send(worker, count, pause_s))

    async def _send(self, worker: int, count: int, pause_s: float) -> None:
        rng = random.Random(self.world.random.random())
        settings = {"delivery_timeout_ms": FOREVER_MS, "max_block_ms": FOREVER_MS, "request_timeout_ms": 3_000}
        async with self.world.producer(**settings, **QUICK, linger_ms=rng.choice((0, 2))) as producer:
            deliveries = []
            for _ in range(count):
                value, partition = next(self.values), rng.randrange(self.partitions)
                attempt = Operation(f"sender {worker}", SEND, sent=[Sent(partition_name(PLAIN, partition), value)])
                self.history.append(attempt)
                self.sent.setdefault((worker, partition), []).append(value)
                delivery = await producer.send(PLAIN, b"%d" % value, partition=partition)
                deliveries.append((attempt, value, delivery))
                self._deliveries.append((partition, delivery))
                if rng.random() < 0.4:
                    await asyncio.sleep(rng.uniform(0, 2 * pause_s))
            for attempt, value, delivery in deliveries:
                where = await delivery
                attempt.outcome = OK
                self.acknowledged[value] = (where.partition, where.offset)

    def deliveries(self, partition: int) -> tuple[int, int]:
        """How many records of idempotent senders to this partition are acknowledged now, and how many still wait."""
        done = [delivery.done() for number, delivery in self._deliveries if number == partition]
        return sum(done), len(done) - sum(done)

    def sends_transactions(self, count: int, *, abort_share: float = 0.2, pause_s: float = 0.05) -> None:
        """Starts a transactional producer that does `count` transactions of up to four records."""
        worker = next(self.workers)
        self.start(self._transact(worker, count, abort_share, pause_s))

    async def _transact(self, worker: int, count: int, abort_share: float, pause_s: float) -> None:
        rng = random.Random(self.world.random.random())
        done, instance = 0, 0
        while done < count:
            instance += 1
            producer = self.world.producer(
                transactional_id=f"worker-{worker}",
                transaction_timeout_ms=rng.choice((5_000, 30_000)),
                delivery_timeout_ms=20_000,
                request_timeout_ms=3_000,
                max_block_ms=30_000,
                linger_ms=0,
                **QUICK,
            )
            try:
                await producer.init_transactions()
                while done < count:
                    transaction = Operation(f"worker {worker}", session=instance)
                    self.history.append(transaction)
                    done += 1
                    try:
                        await self._one_transaction(producer, transaction, rng, abort_share, pause_s)
                    except TransactionAbortable:
                        await producer.abort_transaction()
                        transaction.outcome = FAIL
            except KafkaError as error:
                # Fenced or timed out: the next instance ends the transaction, one way or the other.
                self.world.note(f"worker {worker} starts over: {error!r}")
                await asyncio.sleep(0.1)
            finally:
                await producer.close(timeout_ms=0)

    async def _one_transaction(
        self, producer: Any, transaction: Operation, rng: random.Random, abort_share: float, pause_s: float
    ) -> None:
        await producer.begin_transaction()
        for _ in range(rng.randint(1, 4)):
            value, partition = next(self.values), rng.randrange(self.partitions)
            transaction.sent.append(Sent(partition_name(BOUND, partition), value))
            await producer.send(BOUND, b"%d" % value, partition=partition)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, pause_s))
        if rng.random() < abort_share:
            await producer.abort_transaction()
            transaction.outcome = FAIL
            return
        for attempt in range(5):
            try:
                await producer.commit_transaction()
                transaction.outcome = OK
                return
            except KafkaError as error:
                if error.code != ErrorCode.REQUEST_TIMED_OUT or attempt == 4:
                    raise

    def reads(self, *, committed: bool = True, **settings: Any) -> None:
        """Starts a consumer that reads both topics while the story runs."""
        worker = next(self.workers)
        self._read_on(self._read(worker, committed, settings))

    async def _read(self, worker: int, committed: bool, settings: dict[str, Any]) -> None:
        isolation = "read_committed" if committed else "read_uncommitted"
        topics = (PLAIN, BOUND) if committed else (PLAIN,)
        reading = {"isolation_level": isolation, "auto_offset_reset": "earliest", "request_timeout_ms": 3_000}
        async with self.world.consumer(**reading, **QUICK, **settings) as consumer:
            await consumer.assign([(topic, p) for topic in topics for p in range(self.partitions)])
            while not self.ending:
                records = await consumer.poll(300)
                for record in records:
                    self.ledger.shown(record.topic, record.partition, record.offset)
                polled = [Read(partition_name(r.topic, r.partition), r.offset, int(r.value or b"")) for r in records]
                if polled:
                    isolated = COMMITTED if committed else UNCOMMITTED
                    reading_now = Operation(f"reader {worker}", POLL, polled=polled, outcome=OK, isolation=isolated)
                    self.history.append(reading_now)

    def watches_ends(self) -> None:
        """Starts a client that asks for the ends of the partitions: they never go back, not even after an election."""
        self._read_on(self._watch_ends())

    async def _watch_ends(self) -> None:
        seen: dict[Any, int] = {}
        reading = {"request_timeout_ms": 1_000, "default_api_timeout_ms": 5_000}
        async with self.world.consumer(**reading, **QUICK) as consumer:
            while not self.ending:
                try:
                    ends = await consumer.end_offsets([(PLAIN, p) for p in range(self.partitions)])
                except KafkaError:
                    continue
                for place, end in ends.items():
                    assert end >= seen.get(place, 0), f"{place} ended at {seen[place]}, and now at {end}"
                    seen[place] = end
                await asyncio.sleep(0.05)

    def joins_group(self, name: str = "m", **settings: Any) -> None:
        """Starts a member of the group that reads the topic of the idempotent senders and commits."""
        self._read_on(self._consume(name, settings))

    async def _consume(self, name: str, settings: dict[str, Any]) -> None:
        reading = {
            "group_id": "g",
            "client_id": name,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": 10_000,
            "heartbeat_interval_ms": 1_000,
            "request_timeout_ms": 3_000,
            "default_api_timeout_ms": 30_000,
        }
        async with self.world.consumer(**reading | settings, **QUICK) as consumer:
            await consumer.subscribe([PLAIN])
            while not self.ending or len(self.seen_by_group) < len(self.acknowledged):
                records = list(await consumer.poll(300))
                self.seen_by_group.update(int(record.value or b"") for record in records)
                following = {(r.topic, r.partition): r.offset + 1 for r in records}
                if not following:
                    continue
                self.generations.add((await consumer.group_metadata()).generation_id)
                try:
                    await consumer.commit(following)
                except KafkaError as error:
                    self.failed_commits += 1
                    self.world.note(f"{name} cannot commit: {error!r}")
                    continue
                for (_, partition), offset in following.items():
                    self.committed_offsets[partition] = max(offset, self.committed_offsets.get(partition, 0))

    # --- what a story takes back ---------------------------------------------------------------------------

    def forget_below(self, topic: str, partition: int, offset: int) -> None:
        """Records below an offset were deleted on purpose."""
        gone = {v for v, (p, o) in self.acknowledged.items() if topic == PLAIN and p == partition and o < offset}
        self._forget(gone)

    def forget_all(self) -> None:
        """The topic of the idempotent senders was deleted."""
        self._forget(set(self.acknowledged))

    def _forget(self, gone: set[int]) -> None:
        self.acknowledged = {value: place for value, place in self.acknowledged.items() if value not in gone}
        self.sent = {key: [value for value in values if value not in gone] for key, values in self.sent.items()}
        self.history = [t for t in self.history if not any(sent.value in gone for sent in t.sent)]
