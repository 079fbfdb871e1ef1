"""A pure transaction coordinator: producers start, add partitions and end transactions; markers are sent,
time passes, it fails over.

Runs the pure shard alone, without a broker: every record it appends is kept, and a failover replays them. Markers are
delivered when the test says so, so every intermediate state can be observed.
"""

from typing import Any

from ottla.coordinator.effects import Append, Effects
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.shard import SendMarkers, TransactionShard
from ottla.coordinator.transaction.starting import ProducerInit
from ottla.coordinator.transaction.transaction import (
    ProducerIdAndEpoch,
    Transaction,
    transaction_key,
    transaction_value,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.types import TopicPartition
from tests.support import fresh_load

TIMEOUT_MS = 60_000
OLD, NEW = 4, 5
"""EndTxn's versions: up to 4 a producer keeps its epoch, from 5 on each transaction has its own (KIP-890)."""


def places(*texts: str) -> list[TopicPartition]:
    """places("t-0", "t-1")"""
    return [TopicPartition(topic, int(index)) for topic, _, index in (text.rpartition("-") for text in texts)]


class TransactionWorld:
    """One shard, its log, its clock, its responses and the markers it wants written."""

    def __init__(self, *, now: int = 1_700_000_000_000, **settings: Any) -> None:
        self.config = TransactionConfig(**settings)
        self.now = now
        self.log: list[Append] = []
        self.markers: list[SendMarkers] = []
        self.appends_fail = False
        self._request_id = 0
        self._producer_ids = 1000
        self._start()

        fresh_load.watch(self)

    def _start(self) -> None:
        self.shard = self.fresh_load()
        self._run(self.shard.on_loaded(self.now))

    def fresh_load(self) -> TransactionShard:
        """Another shard that has replayed the log."""
        shard = TransactionShard(self.config)
        for offset, record in enumerate(self.log):
            shard.replay(offset, record.key, record.value, self.now)
        return shard

    # --- events -------------------------------------------------------------------------------------

    def _run(self, effects: Effects[Any]) -> dict[int, Any]:
        """Does what the runtime does: append and replay, then answer and send."""
        if effects.records and self.appends_fail:
            failed = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "cannot append")
            return {reply.request_id: failed for reply in effects.replies}
        for record in effects.records:
            self.shard.replay(len(self.log), record.key, record.value, self.now)
            self.log.append(record)
        self.markers += effects.events
        return {reply.request_id: reply.response for reply in effects.replies}

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """The answer, or the error code."""
        self._request_id += 1
        answers = self._run(getattr(self.shard, method)(*arguments, self._request_id, self.now, **options))
        assert len(answers) == 1, "every request is answered exactly once"
        (answer,) = answers.values()
        return answer.code if isinstance(answer, KafkaError) else answer

    def wait(self, milliseconds: int) -> None:
        """Advances the clock and fires each timer at its time."""
        end = self.now + milliseconds
        for _ in range(100_000):
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self._run(self.shard.tick(self.now))
        self.now = end

    def fail_over(self) -> None:
        """Another broker takes the partition: unsent markers are lost, the log is replayed."""
        self._run(self.shard.on_unloaded())
        self.markers.clear()
        self._start()

    def write_markers(self, *partitions: str) -> None:
        """Delivers the requested markers to these partitions, or to all."""
        decided, self.markers = self.markers, []
        for each in decided:
            chosen = [p for p in each.partitions if not partitions or str(p) in partitions]
            self._run(self.shard.markers_written(each, chosen, self.now))
            if len(chosen) < len(each.partitions):
                self.markers.append(each)

    def put(self, transaction: Transaction) -> None:
        """Starts from a stored transaction, as if it had always been in the log."""
        record = Append(transaction_key(transaction.transactional_id), transaction_value(transaction))
        self.shard.replay(len(self.log), record.key, record.value, self.now)
        self.log.append(record)

    # --- producers ----------------------------------------------------------------------------------------

    def init(
        self,
        transactional_id: str = "x",
        *,
        expected: tuple[int, int] | None = None,
        timeout_ms: int = TIMEOUT_MS,
        two_phase: bool = False,
        keep_prepared: bool = False,
    ) -> Any:
        """InitProducerId: ProducerIdAndEpoch or an error code."""
        self._producer_ids += 1
        init = ProducerInit(transactional_id, timeout_ms, expected, two_phase, keep_prepared)
        return self._ask("init_producer_id", init, self._producer_ids)

    def add(self, producer: ProducerIdAndEpoch, *partitions: str, transactional_id: str = "x", version: int = 0) -> Any:
        """AddPartitionsToTxn or AddOffsetsToTxn; version 2 is the implicit add. An error code, NONE included."""
        answer = self._ask(
            "add_partitions", transactional_id, *producer[:2], places(*partitions), client_version=version
        )
        return ErrorCode.NONE if answer == dict.fromkeys(places(*partitions), ErrorCode.NONE) else answer

    def verify(self, producer: ProducerIdAndEpoch, *partitions: str, transactional_id: str = "x") -> Any:
        try:
            return self.shard.verify(transactional_id, *producer[:2], places(*partitions))
        except KafkaError as error:
            return error.code

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool, version: int = NEW, transactional_id: str = "x"
    ) -> Any:
        """EndTxn: ProducerIdAndEpoch for the next transaction, or an error code."""
        self._producer_ids += 1
        return self._ask("end", transactional_id, *producer[:2], commit, self._producer_ids, bumps_epoch=version >= NEW)

    def commit(self, producer: ProducerIdAndEpoch, version: int = NEW) -> Any:
        return self.end(producer, commit=True, version=version)

    def abort(self, producer: ProducerIdAndEpoch, version: int = NEW) -> Any:
        return self.end(producer, commit=False, version=version)

    # --- observations -------------------------------------------------------------------------------------

    @property
    def transaction(self) -> Transaction:
        return self.shard.transactions["x"]

    @property
    def state(self) -> str:
        known = self.shard.transactions.get("x")
        return "none" if known is None else str(known.state)

    @property
    def states_in_log(self) -> list[str]:
        """Every state that was ever stored, in order; a tombstone is `gone`."""
        replayed = TransactionShard(self.config)
        seen = []
        for offset, record in enumerate(self.log):
            replayed.replay(offset, record.key, record.value, 0)
            found = replayed.transactions.get("x")
            seen.append("gone" if found is None else str(found.state))
        return seen
