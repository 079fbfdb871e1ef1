"""A log and a plain list as its model: after any operations and any crash, both have the same content.

The disk is simulated: a power loss keeps what was synced, some of the rest, and may tear the last write.
"""

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.clock import MonotonicMs
from ottla.errors import ErrorCode, KafkaError
from ottla.log.cleaning.log_cleaning import apply_compaction, enforce_retention, plan_compaction
from ottla.log.config import TopicConfig
from ottla.log.opening import open_log
from ottla.log.partition_log import Origin, PartitionLog
from ottla.protocol.records.record_batch import (
    Codec,
    ControlType,
    build_batch,
    control_batch,
    iter_batches,
    read_records,
)
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from ottla.types import TopicPartition
from tests.support.worlds.log_reload import assert_reload_matches, state_of
from tests.support.worlds.log_world import find_by_time

NOON = 1_700_000_000_000
HOUR = 3_600_000
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
PRODUCERS = st.sampled_from([7, 8])


class Batch(NamedTuple):
    """A batch in the model."""

    base_offset: int
    next_offset: int
    records: tuple[tuple[int, bytes | None, bytes | None, int], ...]
    producer_id: int = -1
    sequence: int = -1
    transactional: bool = False
    marker: ControlType | None = None


class LogMachine(RuleBasedStateMachine):
    """The log, and a list of batches as its model."""

    compacts = False

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.platter = SimPlatter(self.loop)
        self.disk = self.platter.disk()
        self.now = NOON
        self.config = TopicConfig(
            segment_bytes=600,
            index_interval_bytes=100,
            retention_ms=HOUR,
            file_delete_delay_ms=1000,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=HOUR,
            cleanup_policy=("compact",) if self.compacts else ("delete",),
        )
        self.batches: list[Batch] = []
        self.start = self.end = self.high_watermark = self.flushed = self.dirty_from = 0
        self.counter = self.leader_epoch = 0
        self.sequences: dict[int, int] = {}
        self.open_transactions: set[int] = set()
        self.log = self.opened(clean=True)

    def opened(self, *, clean: bool) -> PartitionLog:
        return open_log(
            "/data/t-0",
            TopicPartition("t", 0),
            bytes(16),
            self.config,
            disk=self.disk,
            clock=lambda: self.now,
            monotonic=lambda: MonotonicMs(self.now),
            clean_shutdown=clean,
            log_start_offset=self.start,
            high_watermark=self.high_watermark,
            recovery_point=self.flushed,
            first_dirty_offset=self.dirty_from,
        )

    # --- writing ------------------------------------------------------------------------------------------

    def rows(self, keys: list[bytes], tombstones: bool = False) -> list[tuple[int, bytes, bytes | None, tuple[()]]]:
        made = []
        for key in keys:
            self.counter += 1
            made.append((self.now, key, None if tombstones else b"value-%d" % self.counter, ()))
        return made

    def note(self, rows: list[tuple[int, bytes, bytes | None, tuple[()]]], **details: object) -> None:
        records = tuple((self.end + n, key, value, time) for n, (time, key, value, _) in enumerate(rows))
        self.batches.append(Batch(self.end, self.end + len(rows), records, **details))  # type: ignore[arg-type]
        self.end += len(rows)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4), codec=st.sampled_from([Codec.NONE, Codec.GZIP]))
    def append(self, keys: list[bytes], codec: Codec) -> None:
        rows = self.rows(keys)
        appended = self.log.append(build_batch(rows, codec=codec), leader_epoch=self.leader_epoch)
        assert (appended.base_offset, appended.duplicate) == (self.end, False)
        self.note(rows)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=2))
    def append_tombstones(self, keys: list[bytes]) -> None:
        rows = self.rows(keys, tombstones=True)
        self.log.append(build_batch(rows), leader_epoch=self.leader_epoch)
        self.note(rows)

    @rule(producer_id=PRODUCERS, keys=st.lists(KEYS, min_size=1, max_size=3), transactional=st.booleans())
    def produce(self, producer_id: int, keys: list[bytes], transactional: bool) -> None:
        transactional = transactional or producer_id in self.open_transactions
        sequence, rows = self.sequences.get(producer_id, 0), self.rows(keys)
        batch = build_batch(
            rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=transactional
        )
        appended = self.log.append(batch, leader_epoch=self.leader_epoch)
        assert (appended.base_offset, appended.duplicate) == (self.end, False)
        self.note(rows, producer_id=producer_id, sequence=sequence, transactional=transactional)
        self.sequences[producer_id] = sequence + len(keys)
        if transactional:
            self.open_transactions.add(producer_id)

    @rule(producer_id=PRODUCERS, back=st.integers(1, 5))
    def produce_again(self, producer_id: int, back: int) -> None:
        """A retry of one of the producer's last five batches is recognised, after restarts and crashes too."""
        mine = [batch for batch in self.batches if batch.producer_id == producer_id and batch.marker is None]
        if len(mine) < back or (self.compacts and back > 1):
            return  # Compaction keeps only the last batch's header.
        batch = mine[-back]
        if batch.sequence + len(batch.records) > self.sequences.get(producer_id, 0):
            return
        rows = [(time, key, value, ()) for _, key, value, time in batch.records] or [(0, b"k", b"v", ())]
        count = batch.next_offset - batch.base_offset
        rows = (rows * count)[:count]
        again = build_batch(
            rows,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=batch.sequence,
            transactional=batch.transactional or producer_id in self.open_transactions,
        )
        appended = self.log.append(again, leader_epoch=self.leader_epoch)
        assert appended.duplicate
        assert appended.base_offset == batch.base_offset

    @precondition(lambda self: self.open_transactions)
    @rule(data=st.data(), abort=st.booleans())
    def end_transaction(self, data: st.DataObject, abort: bool) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.open_transactions)))
        marker = control_batch(
            commit=not abort, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=self.now
        )
        self.log.append(marker, leader_epoch=self.leader_epoch, origin=Origin.COORDINATOR)
        kind = ControlType.ABORT if abort else ControlType.COMMIT
        self.batches.append(Batch(self.end, self.end + 1, (), producer_id, marker=kind))
        self.end += 1
        self.open_transactions.discard(producer_id)

    @rule(producer_id=PRODUCERS)
    def produce_with_a_gap(self, producer_id: int) -> None:
        if self.sequences.get(producer_id):
            batch = build_batch(
                self.rows([b"a"]),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=self.sequences[producer_id] + 1,
                transactional=producer_id in self.open_transactions,
            )
            with pytest.raises(KafkaError) as caught:
                self.log.append(batch, leader_epoch=self.leader_epoch)
            assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    # --- upkeep -------------------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        self.log.advance_high_watermark(self.end)
        self.high_watermark = self.end

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def lead_again(self) -> None:
        self.leader_epoch += 1
        self.log.begin_leader_epoch(self.leader_epoch)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.log.save_epochs()  # As in a checkpoint: the epochs first, then the recovery point.
        self.flushed = self.end
        assert self.log.flushed_offset == self.end

    @rule(minutes=st.integers(1, 40))
    def time_passes(self, minutes: int) -> None:
        self.now += minutes * 60_000
        self.log.roll_if_due()

    @rule()
    def enforce_retention(self) -> None:
        enforce_retention(self.log, self.now)
        start = self.log.log_start_offset
        assert start <= self.high_watermark or start == self.start
        if not self.compacts:
            gone = [
                time for batch in self.batches for offset, _, _, time in batch.records if self.start <= offset < start
            ]
            assert all(self.now - time > HOUR for time in gone), "a young record was removed"
        else:
            assert start == self.start
        self.start = start

    @precondition(lambda self: self.high_watermark > self.start)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.high_watermark))
        self.log.delete_records_before(self.start)
        assert self.log.log_start_offset == self.start

    @precondition(lambda self: self.compacts)
    @rule()
    def compact(self) -> None:
        before = self.visible()
        plan = plan_compaction(self.log, self.now)
        if plan is None:
            return
        plan.run()
        assert apply_compaction(self.log, plan)
        self.dirty_from = self.log.first_dirty_offset
        after = dict(self.read_records(self.start))
        committed = self.committed()
        latest: dict[bytes | None, int] = {}
        for offset in sorted(before):
            if offset in committed and offset < self.dirty_from:
                latest[before[offset][0]] = offset
        for offset, record in after.items():
            assert before[offset] == record, "a record changed"
            if offset < self.dirty_from:
                assert offset in committed, "an aborted record survived"
        for offset, record in before.items():
            if offset >= self.dirty_from:
                assert after[offset] == record, "a record was removed too early"
            elif latest.get(record[0]) == offset and record[1] is not None:
                assert after[offset] == record, "the last record of a key is gone"
        kept = set(after)
        self.batches = [
            batch._replace(
                records=tuple(record for record in batch.records if record[0] in kept or record[0] < self.start)
            )
            for batch in self.batches
        ]

    def committed(self) -> set[int]:
        """The offsets of records that are not part of an aborted transaction."""
        good: set[int] = set()
        pending: dict[int, list[int]] = {}
        for batch in self.batches:
            if batch.marker is not None:
                offsets = pending.pop(batch.producer_id, [])
                if batch.marker is ControlType.COMMIT:
                    good.update(offsets)
            elif batch.transactional:
                pending.setdefault(batch.producer_id, []).extend(record[0] for record in batch.records)
            else:
                good.update(record[0] for record in batch.records)
        return good

    # --- lives and deaths ---------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        before = state_of(self.log)
        self.log.close()
        self.flushed = self.end
        self.log = self.opened(clean=True)
        assert state_of(self.log) == before

    @rule()
    def kill(self) -> None:
        before = state_of(self.log)
        self.disk.detach()
        self.disk = self.platter.disk()
        self.log = self.opened(clean=False)
        assert state_of(self.log) == before, "the kernel had every write"

    @rule()
    def lose_power(self) -> None:
        self.disk.detach()
        self.platter.power_loss()
        self.disk = self.platter.disk()
        self.log = self.opened(clean=False)
        end = self.log.log_end_offset
        if end == self.start > self.flushed:
            # The remaining records were deleted, and may be lost, with the state of their producers.
            self.batches = [batch for batch in self.batches if self.log.producers.find(batch.producer_id)]
        self.forget_the_tail(end)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """Truncates at the start of some batch above the high watermark, as a follower does."""
        above = [
            batch.base_offset for batch in self.batches if batch.base_offset >= max(self.high_watermark, self.start + 1)
        ]
        if above:
            offset = data.draw(st.sampled_from(above))
            self.log.truncate_to(offset)
            self.flushed = min(self.flushed, offset)
            self.forget_the_tail(offset)

    def forget_the_tail(self, end: int) -> None:
        assert self.flushed <= end <= self.end, f"{self.flushed} was flushed, {end} is left of {self.end}"
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        assert end in {self.start, *(batch.next_offset for batch in self.batches)} or not self.batches
        self.end = end
        self.high_watermark = min(self.high_watermark, end)
        self.dirty_from = min(self.dirty_from, self.log.first_dirty_offset)
        self.sequences, self.open_transactions = {}, set()
        for batch in self.batches:
            if batch.marker is not None:
                self.open_transactions.discard(batch.producer_id)
            elif batch.producer_id >= 0:
                self.sequences[batch.producer_id] = batch.sequence + batch.next_offset - batch.base_offset
                if batch.transactional:
                    self.open_transactions.add(batch.producer_id)

    # --- what must always hold ----------------------------------------------------------------------------

    def visible(self) -> dict[int, tuple[bytes | None, bytes | None, int]]:
        return {
            offset: (key, value, time)
            for batch in self.batches
            for offset, key, value, time in batch.records
            if self.start <= offset < self.end
        }

    def read_records(
        self, offset: int, max_bytes: int = 300
    ) -> list[tuple[int, tuple[bytes | None, bytes | None, int]]]:
        found, start = [], offset
        while offset < self.end:
            data = self.log.read(offset, max_bytes, upper_bound=self.end)
            if not data:
                break
            for position, header in iter_batches(data):
                offset = header.next_offset
                if not header.is_control:
                    records = read_records(data, position, header)
                    found += [(r.offset, (r.key, r.value, r.timestamp)) for r in records if r.offset >= start]
        return found

    @rule(data=st.data(), max_bytes=st.integers(1, 2000))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        expected = [(o, record) for o, record in sorted(self.visible().items()) if o >= offset]
        assert self.read_records(offset, max_bytes) == expected

    @rule(seconds=st.integers(0, 4 * 3600))
    def find_by_time(self, seconds: int) -> None:
        time = NOON + seconds * 1000
        visible = sorted(self.visible().items())
        expected = next((offset for offset, record in visible if record[2] >= time), None)
        found = find_by_time(self.log, time, upper_bound=self.end)
        markers = found is not None and found.offset not in self.visible()
        assert markers or (None if found is None else found.offset) == expected

    @invariant()
    def offsets_agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        assert log.high_watermark == max(self.high_watermark, self.start)
        assert log.flushed_offset <= log.log_end_offset
        firsts: dict[int, int] = {}
        for batch in self.batches:
            if batch.marker is not None:
                firsts.pop(batch.producer_id, None)
            elif batch.transactional:
                firsts.setdefault(batch.producer_id, batch.base_offset)
        undecided = min(firsts.values(), default=None)
        unstable = log.first_unstable_offset
        assert unstable is None if undecided is None and self.high_watermark == self.end else True
        if undecided is not None:
            assert unstable is not None
            assert unstable <= max(undecided, self.start)

    @invariant()
    def segments_are_in_order(self) -> None:
        bases = [segment.base_offset for segment in self.log.segments]
        assert bases == sorted(set(bases))
        assert bases[0] <= self.start

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert self.read_records(self.start) == sorted(self.visible().items())
            assert_reload_matches(self.log, now=self.now)


class CompactedLogMachine(LogMachine):
    """The same with compaction."""

    compacts = True


STEPS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    # Not Phase.shrink: it takes minutes, and the timeout of a test would hide the failure that it found. To get the
    # smallest steps that fail, add it and run with --timeout=0.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogModel = LogMachine.TestCase
TestLogModel.settings = STEPS
TestCompactedLogModel = CompactedLogMachine.TestCase
TestCompactedLogModel.settings = STEPS
