"""One log on a simulated disk under random producers, compaction, retention, DeleteRecords, kills and power loss.

After each step, readers of both isolation levels are compared with `CleaningModel`. What happens depends on the seed
alone.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.clock import MonotonicMs
from ottla.errors import ErrorCode, KafkaError
from ottla.log.cleaning.log_cleaning import apply_compaction, enforce_retention, plan_compaction
from ottla.log.config import TopicConfig
from ottla.log.log_directory import LogDirectory
from ottla.log.partition_log import Origin, PartitionLog
from ottla.protocol.records.record_batch import Codec, build_batch, control_batch, iter_batches
from ottla.testing.sim_disk import SimDisk, SimPlatter
from ottla.testing.sim_loop import SimLoop
from ottla.types import INT64_MAX, TopicPartition
from tests.support.worlds.cleaning_model import CleaningModel, Row, Sent
from tests.support.worlds.log_reload import LogState, load_copy, state_of

if TYPE_CHECKING:
    from ottla.log.cleaning.compactor import CompactionPlan

NOON = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)
KEYS = [b"a", b"b", b"c", b"d", b"e"]
IDEMPOTENT, TRANSACTIONAL = (0, 1), (2, 3, 4)
"""Numbers of the producers of each kind."""


class MortalDisk(SimDisk):
    """A disk whose machine dies before its n-th change from now, if `changes_left` is set."""

    def __init__(self, platter: SimPlatter) -> None:
        super().__init__(platter)
        self.changes_left: int | None = None

    def _fail_if_asked(self, operation: str) -> None:
        if self.changes_left is not None and operation not in ("open", "pread", "read_file"):
            if self.changes_left == 0:
                self.detach()
            self.changes_left -= 1
        super()._fail_if_asked(operation)


class Reader:
    """A consumer that reads a little now and then, and keeps what it read of each key."""

    def __init__(self, world: "CleaningWorld", *, committed_only: bool) -> None:
        self.committed_only = committed_only
        self.first = self.position = world.log.log_start_offset
        self.caught_up_ms = world.now
        self.rows: dict[bytes, list[Row]] = {}

    def read(self, world: "CleaningWorld", *, to_the_end: bool) -> None:
        """Reads one batch, or everything there is."""
        bound = world.bound(self.committed_only)
        while self.position < bound:
            rows, self.position = world.fetch(self.position, 1, self.committed_only)
            for row in rows:
                if row.key is not None:
                    self.rows.setdefault(row.key, []).append(row)
            if not to_the_end:
                break
        if self.position >= bound:
            world.model.check_reader(self.rows, self.first, bound)
            self.caught_up_ms = world.now

    def is_late(self, world: "CleaningWorld") -> bool:
        """A reader that needs longer than delete.retention.ms may miss tombstones, and the log start may pass it.

        The retention counts from the beginning of the pass, as in Kafka, but readers find the values that the
        tombstones delete until its end.
        """
        return (
            world.now - self.caught_up_ms >= world.config.delete_retention_ms - world.longest_pass_ms
            or not world.log.log_start_offset <= self.position <= world.log.log_end_offset
        )


class CleaningWorld:
    """The log, its model and its readers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.platter = SimPlatter(SimLoop(seed))
        self.now = NOON
        choice = self.random.choice
        self.config = TopicConfig(
            cleanup_policy=choice([("compact",)] * 3 + [("compact", "delete")] * 2 + [("delete",)]),
            min_cleanable_dirty_ratio=choice((0.0, 0.0, 0.0, 0.4)),
            segment_bytes=choice((400, 800, 2000, 1 << 20)),
            index_interval_bytes=100,
            delete_retention_ms=choice((0, 1000, 5000, 20_000, 60_000)),
            min_compaction_lag_ms=choice((0, 0, 0, 0, 2000)),
            max_compaction_lag_ms=choice((INT64_MAX, 10_000)),
            retention_ms=choice((-1, 20_000)),
            retention_bytes=choice((-1, -1, 2000)),
            file_delete_delay_ms=choice((0, 5000)),
        )
        self.flushes_before_ack = choice((True, False))
        self.bumps_epochs = choice((True, False))
        """Whether each transaction ends with a higher producer epoch (KIP-890)."""
        self.model = CleaningModel(compacts=self.config.compacts)
        self.producer_ids = {number: 100 + number for number in (*IDEMPOTENT, *TRANSACTIONAL)}
        self.expired: set[int] = set()
        self.flushed = self.durable_start = self.leader_epoch = self.counter = 0
        self.plan: CompactionPlan | None = None
        self.start_moved_back = False
        """A power loss made segments reappear that retention had deleted."""
        self.passes = self.deaths = self.longest_pass_ms = 0
        self.disk = MortalDisk(self.platter)
        self.directory = LogDirectory.open("/data", disk=self.disk, clock=self.clock, monotonic=self.monotonic)
        self.directory.load()
        self.log = self.directory.create_log(PARTITION, bytes(16), self.config)
        self.log.flush()
        self.disk.sync_directory("/data")
        self.readers = [Reader(self, committed_only=level) for level in (True, False) for _ in range(3)]

    def clock(self) -> int:
        return self.now

    def monotonic(self) -> MonotonicMs:
        return MonotonicMs(self.now)

    def run(self, steps: int) -> None:
        """Random steps with checks after each. A failure has a note with the step."""
        chosen = self.random.choices(self.STEPS, self.WEIGHTS, k=steps)
        for number, step in enumerate([*chosen, CleaningWorld.check_fresh_load]):
            try:
                step(self)
                self.check()
            except BaseException as error:
                error.add_note(f"step {number}: {step.__name__}, with {self.config}")
                raise

    # --- reading ------------------------------------------------------------------------------------------

    def bound(self, committed_only: bool) -> int:
        return self.log.last_stable_offset if committed_only else self.log.high_watermark

    def fetch(self, offset: int, max_bytes: int, committed_only: bool) -> tuple[list[Row], int]:
        """The records of one fetch, as the client decodes them, and the offset to continue at."""
        bound = self.bound(committed_only)
        data = self.log.read(offset, max_bytes, upper_bound=bound) if offset < bound else b""
        aborted: list[tuple[int, int]] = []
        if committed_only and data:
            end = max(header.next_offset for _, header in iter_batches(data))
            entries = self.log.aborted_transactions(offset, bound)
            aborted = [(entry.producer_id, entry.first_offset) for entry in entries if entry.first_offset < end]
        fetched = CompletedFetch(PARTITION, memoryview(data), offset, aborted=aborted)
        rows = [Row(r.offset, r.key, r.value, r.timestamp) for r in fetched.take(1 << 30)]
        # Offsets at the end may be gone: the reader continues at the bound, as the next fetch finds nothing.
        return rows, max(fetched.next_offset, offset) if data else max(offset, bound)

    def read_all(self, committed_only: bool, offset: int | None = None) -> list[Row]:
        position = self.log.log_start_offset if offset is None else offset
        rows: list[Row] = []
        max_bytes = self.random.choice((1, 300, 1 << 20))
        while position < self.bound(committed_only):
            found, position = self.fetch(position, max_bytes, committed_only)
            rows += found
        return rows

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        for committed_only in (True, False):
            bound = self.bound(committed_only)
            rows = self.read_all(committed_only)
            model.check_read(rows, committed_only=committed_only, bound=bound)
            offset = self.random.randint(log.log_start_offset, bound)
            later = [row for row in rows if row.offset >= offset]
            assert self.read_all(committed_only, offset) == later, f"a reader that begins at {offset} differs"
        for number, reader in enumerate(self.readers):
            if reader.is_late(self):
                self.readers[number] = Reader(self, committed_only=reader.committed_only)
            elif self.random.random() < 0.3:
                reader.read(self, to_the_end=self.random.random() < 0.3)

    def check_fresh_load(self) -> None:
        """Spec: R6. A load of the files, from the recovery point or from the first batch, equals the live log."""
        live = self.facts(self.log)
        for recovery_point in {0, self.log.flushed_offset}:
            loaded = self.facts(load_copy(self.log, recovery_point=recovery_point, now=self.now))
            for name, here, there in zip(LogState._fields, live, loaded, strict=True):
                assert here == there, f"a load from offset {recovery_point} has {name} {there!r}, live {here!r}"

    def facts(self, log: PartitionLog) -> LogState:
        state = state_of(log)
        left_out = self.forgettable(state.segment_bases[0])
        return state._replace(
            producers={p: f for p, f in state.producers.items() if p not in left_out},
            leader_epochs=self.epochs(state),
        )

    def forgettable(self, first_base: int) -> set[int]:
        """Producers that the log need not know any more."""
        if not self.start_moved_back:
            return self.expired
        # A snapshot was only synced at the higher start: producers without batches in the log may be forgotten.
        return self.expired | {sent.producer_id for sent in self.model.sent if sent.base_offset < first_base}

    def epochs(self, state: LogState) -> list[tuple[int, int]]:
        """Those of deleted records are not kept. The records may be back after a crash, then a load finds them."""
        first, entries = self.model.deleted_to, state.leader_epochs
        begun = [entry for entry in entries if entry[1] >= first]
        if self.config.compacts or first >= state.log_end_offset:
            return begun
        # The epoch of the first record that was not deleted may have begun before it.
        before = [(epoch, first) for epoch, start in entries if start < first]
        return begun if begun and begun[0][1] == first else before[-1:] + begun

    # --- writing ------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        made = []
        for offset in range(self.model.end, self.model.end + self.random.choice((1, 1, 2, 4))):
            self.counter += 1
            key = None if not self.config.compacts and self.random.random() < 0.2 else self.random.choice(KEYS)
            value = None if self.random.random() < 0.3 else b"v%d" % self.counter
            made.append(Row(offset, key, value, self.now - self.random.choice((0, 0, 0, 500, 3000))))
        return made

    def append(self, producer_id: int = -1, *, transactional: bool = False) -> None:
        rows, model = self.rows(), self.model
        epoch = model.epochs.get(producer_id, 0) if producer_id >= 0 else -1
        last = model.last_sent.get(producer_id)
        sequence = -1 if producer_id < 0 else last.next_sequence if last is not None else 0
        batch = build_batch(
            [(row.timestamp, row.key, row.value, ()) for row in rows],
            codec=self.random.choice((Codec.NONE, Codec.NONE, Codec.GZIP)),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        appended = self.log.append(batch, leader_epoch=self.leader_epoch)
        assert not appended.duplicate
        end = appended.last_offset + 1
        next_sequence = sequence + len(rows)
        model.note(
            Sent(batch, appended.base_offset, end, tuple(rows), producer_id, epoch, next_sequence, transactional)
        )
        self.acknowledge()

    def acknowledge(self) -> None:
        if not self.flushes_before_ack:
            self.log.advance_high_watermark(self.log.log_end_offset)

    def append_plain(self) -> None:
        self.append()

    def append_idempotent(self) -> None:
        self.append(self.producer_ids[self.random.choice(IDEMPOTENT)])

    def append_transactional(self) -> None:
        self.append(self.producer_ids[self.random.choice(TRANSACTIONAL)], transactional=True)

    def end_transaction(self) -> None:
        """Commits or aborts, now and then a transaction without records."""
        model = self.model
        producer_id = self.random.choice([*model.open] * 5 + [self.producer_ids[TRANSACTIONAL[0]]])
        commits = self.random.random() < 0.6
        if producer_id in model.open:
            commits = model.decisions.get((producer_id, model.open[producer_id][0].base_offset), commits)
        epoch = model.epochs.get(producer_id, 0) + (self.bumps_epochs or self.random.random() < 0.1)
        marker = control_batch(
            commit=commits, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp=self.now
        )
        appended = self.log.append(marker, leader_epoch=self.leader_epoch, origin=Origin.COORDINATOR)
        offset = appended.base_offset
        model.note(Sent(marker, offset, offset + 1, (), producer_id, epoch, commits=commits))
        self.acknowledge()

    def retry(self) -> None:
        """The last batch of each producer is recognised; an older epoch is rejected."""
        forgettable = self.forgettable(self.log.segments[0].base_offset)
        for producer_id, epoch in self.model.epochs.items():
            if producer_id in forgettable:
                continue
            last = self.model.last_sent.get(producer_id)
            if last is not None:
                appended = self.log.append(last.data, leader_epoch=self.leader_epoch)
                assert appended.duplicate, f"producer {producer_id}: the retry of {last} was appended"
                assert appended.base_offset == last.base_offset
            if epoch > 0:
                zombie = build_batch(
                    [(self.now, b"a", b"zombie", ())],
                    producer_id=producer_id,
                    producer_epoch=epoch - 1,
                    base_sequence=0,
                    transactional=True,
                )
                with pytest.raises(KafkaError) as caught:
                    self.log.append(zombie, leader_epoch=self.leader_epoch)
                assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH

    def expire_producers(self) -> None:
        """All producers without an open transaction; they continue under new ids."""
        self.log.expire_producers(self.monotonic(), 0)
        self.replace_producers({sent.producer_id for sent in self.model.sent} - self.model.open.keys())

    def replace_producers(self, producer_ids: set[int]) -> None:
        self.expired |= producer_ids
        for number, producer_id in self.producer_ids.items():
            if producer_id in producer_ids:
                self.producer_ids[number] = producer_id + 100

    # --- upkeep -------------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        self.now += self.random.choice((1, 200, 700, 700, 2500, 15_000))

    def roll(self) -> None:
        self.log.roll()

    def lead_again(self) -> None:
        self.leader_epoch += 1
        self.log.begin_leader_epoch(self.leader_epoch)

    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.log_end_offset
        if self.flushes_before_ack:
            self.log.advance_high_watermark(self.flushed)

    def checkpoint(self) -> None:
        start = self.log.log_start_offset
        self.directory.checkpoint()
        self.durable_start = start

    def enforce_retention(self) -> None:
        before = self.log.log_start_offset
        rows = self.read_all(committed_only=False)
        enforce_retention(self.log, self.now)
        start = self.log.log_start_offset
        if start > before:
            assert self.config.deletes
            assert start <= self.log.high_watermark
            if self.config.retention_bytes < 0:
                gone = [row for row in rows if row.offset < start]
                assert all(self.now - row.timestamp > self.config.retention_ms for row in gone)
        self.model.move_start(start)

    def delete_records(self) -> None:
        start = self.random.randint(self.log.log_start_offset, self.log.high_watermark)
        self.log.delete_records_before(start)
        self.model.move_start(start)

    def plan_compaction(self) -> None:
        if self.plan is None:
            self.plan = plan_compaction(self.log, self.now)
            if self.plan is not None:
                assert self.config.compacts
                assert self.plan.end_offset <= min(self.log.last_stable_offset, self.log.segments.active.base_offset)
                lag = self.config.min_compaction_lag_ms
                for offset in range(self.plan.first_dirty_offset, self.plan.end_offset):
                    row = self.model.rows.get(offset)
                    assert row is None or not lag or row.timestamp <= self.now - lag
                self.plan.max_keys = self.random.choice((1, 3, 1000, 1000))

    def compact(self) -> None:
        """One pass. Other steps may have happened since it was planned."""
        if self.random.random() < 0.5:
            self.roll()
        self.plan_compaction()
        plan, self.plan = self.plan, None
        if plan is None:
            return
        self.model.touched_to = max(self.model.touched_to, plan.end_offset)
        if self.random.random() < 0.1:
            plan.cancel()
        try:
            plan.run()
        except FileNotFoundError:
            assert any(segment not in self.log.segments for segment in plan.sources), "a segment was deleted since"
            return
        self.model.cleaned_to = max(self.model.cleaned_to, plan.cleaned_up_to)
        if self.random.random() < 0.2:
            self.append()
        if apply_compaction(self.log, plan):
            self.passes += 1
            self.longest_pass_ms = max(self.longest_pass_ms, self.now - plan.now)
            rows = self.read_all(committed_only=False)
            self.model.check_cleaned(rows, plan.cleaned_up_to, plan.now, self.config.delete_retention_ms)

    # --- lives and deaths ---------------------------------------------------------------------------------

    def restart(self) -> None:
        before = self.facts(self.log)
        self.directory.close()
        self.flushed = self.log.log_end_offset
        self.durable_start = self.log.log_start_offset
        self.disk.detach()
        self.open_again()
        after = self.facts(self.log)
        assert after._replace(last_stable_offset=None) == before._replace(
            high_watermark=after.high_watermark, last_stable_offset=None
        )

    def kill(self) -> None:
        self.disk.detach()
        self.open_again()

    def lose_power(self) -> None:
        self.disk.detach()
        self.platter.power_loss()
        self.open_again(lost_power=True)

    def die_during(self, step: Callable[["CleaningWorld"], None]) -> None:
        """The machine dies at some write of the step, or after it."""
        self.disk.changes_left = self.random.randint(0, 25)
        try:
            step(self)
        except (OSError, KafkaError):
            assert not self.disk.attached
        if self.random.choice((True, False)):
            self.lose_power()
        else:
            self.kill()

    def die_while_compacting(self) -> None:
        self.die_during(CleaningWorld.compact)

    def die_during_upkeep(self) -> None:
        upkeep = (CleaningWorld.flush, CleaningWorld.enforce_retention, CleaningWorld.checkpoint, CleaningWorld.roll)
        self.die_during(self.random.choice(upkeep))

    def open_again(self, *, lost_power: bool = False) -> None:
        model = self.model
        self.deaths += 1
        self.plan = None
        first_base = self.log.segments[0].base_offset
        self.disk = MortalDisk(self.platter)
        self.directory = LogDirectory.open("/data", disk=self.disk, clock=self.clock, monotonic=self.monotonic)
        self.log = self.directory.load(lambda _: self.config)[PARTITION]
        assert not self.directory.failed
        end, start = self.log.log_end_offset, self.log.log_start_offset
        if lost_power:
            assert self.flushed <= end <= model.end, f"{self.flushed} was flushed, {end} is left of {model.end}"
            if end == start > self.flushed:
                # Everything that was left was below the log start. The log starts over, and forgets its producers.
                self.replace_producers({sent.producer_id for sent in model.sent})
            model.lose_tail(end)
        assert end == model.end
        assert self.durable_start <= start <= max(model.start, self.log.segments[0].base_offset)
        if start < model.start or self.log.segments[0].base_offset < first_base:
            self.start_moved_back = True
        model.move_start(start)
        assert self.log.high_watermark <= end
        self.acknowledge()
        if self.flushes_before_ack:
            self.flush()

    WEIGHTED_STEPS: tuple[tuple[int, Callable[["CleaningWorld"], Any]], ...] = (
        (10, append_plain),
        (12, append_idempotent),
        (20, append_transactional),
        (20, end_transaction),
        (4, retry),
        (1, expire_producers),
        (14, pass_time),
        (14, roll),
        (1, lead_again),
        (8, flush),
        (4, checkpoint),
        (3, enforce_retention),
        (2, delete_records),
        (3, plan_compaction),
        (20, compact),
        (2, restart),
        (2, kill),
        (2, lose_power),
        (2, die_while_compacting),
        (1, die_during_upkeep),
        (2, check_fresh_load),
    )
    WEIGHTS = tuple(weight for weight, _ in WEIGHTED_STEPS)
    STEPS = tuple(step for _, step in WEIGHTED_STEPS)
