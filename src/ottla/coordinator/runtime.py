"""OWNER of a coordinator's shards: append records, replay them, hold replies until they are committed; load, unload.

One runtime serves one coordinator topic; each partition of it that this broker leads is a shard. A shard decides
purely and returns Effects. Everything that happens to it happens here, on the event loop, one step at a time.
Failover is a load. So is recovery from a failed append: unload and load again, without any rollback.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from ottla.clock import Clock
from ottla.coordinator.effects import Effects, Reply, Shard
from ottla.coordinator.hosted import HostedShard, ShardState
from ottla.coordinator.loading import ShardLoader
from ottla.coordinator.replaying import in_batches
from ottla.errors import ErrorCode, KafkaError, error_text
from ottla.garbage_collection import garbage_collection_paused
from ottla.log.partition_log import Origin
from ottla.metadata.image import ClusterImage
from ottla.protocol.records.record_batch import build_batch
from ottla.replication.replica import Replica
from ottla.replication.replica_manager import ACKS_ALL, ReplicaManager
from ottla.types import TopicPartition, partition_for

log = logging.getLogger("ottla.coordinator")

S = TypeVar("S", bound=Shard)
R = TypeVar("R")

ACTIVE = ShardState.ACTIVE

SHARDS_PER_TICK = 2
"""How many shards do what is due in one step of the event loop; the others follow in the next."""
CLOCK_JUMP_MS = 2_000
"""If the clock and the elapsed time differ by this much, the clock was set or the machine slept. If a timer is
this late, this broker was blocked, and so were the heartbeats that clients have sent."""

UNWRITABLE_PAUSE_MS = 1_000
"""How long a shard postpones what is due while its partition cannot be written to."""

APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error that a coordinator's client gets for a failed append."""


class CoordinatorRuntime(Generic[S]):
    """Drives the shards of one coordinator topic."""

    def __init__(
        self,
        topic: str,
        *,
        make_shard: Callable[[int], S],
        replicas: ReplicaManager,
        clock: Clock,
        on_event: Callable[[Any], None] | None = None,
        append_timeout_ms: int = 5_000,
    ) -> None:
        self.topic = topic
        self.make_shard = make_shard
        self._replicas = replicas
        self._clock = clock
        self._monotonic = replicas.log_directory.monotonic
        self._on_event = on_event
        self._append_timeout_ms = append_timeout_ms
        self._image: ClusterImage | None = None
        self._hosted: dict[int, HostedShard[S]] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_request_id = 0
        # The request whose step is running: its reply is returned without a future.
        self._current = 0
        self._answer: Any = None
        self._has_answer = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._clock_ahead_ms: int | None = None
        """How far the clock was ahead of the monotonic one when deadlines were last moved. Deadlines are in wall time,
        but never off by more than CLOCK_JUMP_MS, however often the clock is set."""
        self._is_stopped = False
        self._loader = ShardLoader(self._activate, self._cannot_load)

    # --- requests -----------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """0 while the topic does not exist."""
        topic = self._image.topics.get(self.topic) if self._image is not None else None
        return 0 if topic is None else len(topic.partitions)

    def partition_of(self, key: str) -> int:
        """The partition that coordinates a group or transactional id."""
        count = self.partition_count
        if count == 0:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        return partition_for(key, count)

    def submit(
        self, key: str, decide: Callable[[S, int, int], Effects[R]], *, may_write: bool = True
    ) -> "R | asyncio.Future[R]":
        """Runs `decide(shard, request_id, now)` on the shard of `key`.

        Returns the reply, or a future if the reply has to wait. Raises KafkaError: NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, or the error that the step replied with. A step that
        never appends records sets `may_write` to False: it runs even while the partition cannot be written to.
        """
        hosted = self._active(self.partition_of(key))
        if may_write and not self._is_writable(hosted):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{hosted.name}: too few replicas are in sync")
        now = self._now()
        self._last_request_id = request_id = self._last_request_id + 1
        # A step may run another step before it ends: the outer one becomes current again afterwards.
        outer = self._current, self._answer, self._has_answer
        self._current, self._has_answer = request_id, False
        try:
            try:
                self._run(hosted, decide(hosted.shard, request_id, now))
            except KafkaError:
                raise
            except Exception:
                self._broken(hosted)
                raise
            if self._has_answer:
                if isinstance(self._answer, KafkaError):
                    raise self._answer
                answer: R = self._answer
                return answer
        finally:
            self._current, self._answer, self._has_answer = outer
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        return future

    def read(self, key: str, look: Callable[[S], R]) -> "R | asyncio.Future[R]":
        """Like `submit`, for a step that changes nothing: what `look(shard)` returns or raises, once all of it is
        committed."""

        def decide(shard: S, request_id: int, now: int) -> Effects[R]:
            effects: Effects[R] = Effects()
            try:
                effects.reply(request_id, look(shard))
            except KafkaError as error:
                effects.reply(request_id, error)
            return effects

        return self.submit(key, decide, may_write=False)

    def update(self, key: str, decide: Callable[[S, int], Effects[None]]) -> None:
        """Runs `decide(shard, now)`, a step that no request waits for. Raises KafkaError if the shard is not active
        here, or if the step's records could not be appended."""
        error = self._step(self._active(self.partition_of(key)), decide)
        if error is not None:
            raise error

    def marker_appended(
        self, partition: int, next_offset: int, producer_id: int, producer_epoch: int, commit: bool
    ) -> None:
        """A transaction's marker went into one of this topic's partitions."""
        hosted = self._hosted.get(partition)
        if hosted is not None and hosted.state is ACTIVE:
            hosted.shard.replay_marker(producer_id, producer_epoch, commit)
            hosted.end_offset = max(hosted.end_offset, next_offset)

    def shard(self, key: str) -> S:
        """The shard of `key`, for inspection. Its state may not be committed yet: use `read` for answers to clients."""
        return self._active(self.partition_of(key)).shard

    def active_shards(self) -> Iterator[HostedShard[S]]:
        """Every shard that is active."""
        return (hosted for hosted in self._hosted.values() if hosted.state is ACTIVE)

    def hosted_shards(self) -> Iterator[HostedShard[S]]:
        """Every shard, in any state."""
        return iter(self._hosted.values())

    def is_loading(self) -> bool:
        return any(hosted.state in (ShardState.INITIAL, ShardState.LOADING) for hosted in self._hosted.values())

    def _active(self, partition: int) -> HostedShard[S]:
        hosted = self._hosted.get(partition)
        if hosted is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker leads {self.topic}-{partition}")
        if hosted.state is ACTIVE:
            return hosted
        if hosted.state is ShardState.FAILED:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{hosted.name} cannot be loaded: {hosted.failure}")
        self._loader.want(hosted)
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{hosted.name} is being loaded")

    def _is_writable(self, hosted: HostedShard[S]) -> bool:
        """Whether enough replicas are in sync. If not, no step is tried: it would change memory before its records
        are rejected, and every such step would reload the whole shard."""
        replica = self._replicas.find(self.topic, hosted.partition)
        return replica is None or replica.is_alone or not replica.is_leader or replica.has_enough_in_sync

    # --- one step -----------------------------------------------------------------------------------------

    def _step(self, hosted: HostedShard[S], decide: Callable[[S, int], Effects[None]]) -> KafkaError | None:
        """A step that no request waits for. If it fails, the other shards are not affected."""
        try:
            return self._run(hosted, decide(hosted.shard, self._now()))
        except KafkaError as error:
            return error
        except Exception as error:
            self._broken(hosted)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))

    def _run(self, hosted: HostedShard[S], effects: Effects[Any]) -> KafkaError | None:
        """Executes a step. Returns the error if its records could not be appended; the replies carry it too."""
        if effects.records:
            try:
                self._append(hosted, effects)
            except KafkaError as error:
                self._append_failed(hosted, effects, error)
                return error
        if effects.replies or effects.events:
            self._release(hosted, effects)
        self._arm(hosted.shard.next_deadline())
        return None

    def _append(self, hosted: HostedShard[S], effects: Effects[Any]) -> None:
        now = self._clock()
        producer_id, producer_epoch = effects.producer or (-1, -1)
        replay = hosted.shard.replay
        for records in in_batches(effects.records):
            batch = build_batch(
                [(now, key, value, ()) for key, value in records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=0 if effects.producer else -1,
                transactional=effects.producer is not None,
            )
            appended = self._replicas.append(
                TopicPartition(self.topic, hosted.partition), batch, acks=ACKS_ALL, origin=Origin.COORDINATOR
            )
            for index, (key, value) in enumerate(records):
                replay(appended.base_offset + index, key, value, now, producer_id, producer_epoch)
            hosted.end_offset = appended.last_offset + 1

    def _append_failed(self, hosted: HostedShard[S], effects: Effects[Any], error: KafkaError) -> None:
        code = APPEND_ERRORS.get(error.code, error.code)
        log.warning("%s: cannot append: %s", hosted.name, error)
        for reply in effects.replies:
            self._send(Reply(reply.request_id, KafkaError(code, error.detail)))
        if effects.is_soft:
            # Memory is ahead of the log: load what the log says.
            self._reload(hosted)
        else:
            self._arm(hosted.shard.next_deadline())

    def _broken(self, hosted: HostedShard[S]) -> None:
        """A step failed because of a bug, perhaps halfway: only the log can be trusted."""
        log.exception("%s: a step failed; reloading the shard", hosted.name)
        self._reload(hosted)

    def _release(self, hosted: HostedShard[S], effects: Effects[Any]) -> None:
        """Sends the replies once everything the shard has replayed so far is committed."""
        replica = self._replicas.find(self.topic, hosted.partition)
        if replica is None or not replica.is_leader:
            # Another broker leads the partition; the image that says so is still being applied.
            self._fail(effects, ErrorCode.NOT_COORDINATOR)
        elif replica.log.high_watermark >= hosted.end_offset:
            self._deliver(effects)
        else:
            self._release_when_committed(hosted, effects, replica, hosted.end_offset)

    def _release_when_committed(
        self, hosted: HostedShard[S], effects: Effects[Any], replica: Replica, end_offset: int
    ) -> None:
        def settled(codes: list[ErrorCode]) -> None:
            code = codes[0]
            if code is ErrorCode.NONE:
                self._deliver(effects)
                return
            self._fail(effects, APPEND_ERRORS.get(code, code))
            effects.replies = []
            is_here = self._hosted.get(hosted.partition) is hosted and hosted.state is ACTIVE
            if effects.events and is_here and replica.is_leader and not replica.storage_failure:
                # The requests failed: they timed out, too few replicas are in sync, or a new leader epoch began. But
                # the decision is in the log, so its events must still be delivered.
                self._release_when_committed(hosted, effects, replica, end_offset)

        self._replicas.waits.when_committed([(replica, end_offset)], self._append_timeout_ms, settled)

    def _deliver(self, effects: Effects[Any]) -> None:
        for reply in effects.replies:
            self._send(reply)
        if self._on_event is not None:
            for event in effects.events:
                self._on_event(event)

    def _fail(self, effects: Effects[Any], code: ErrorCode) -> None:
        for reply in effects.replies:
            self._send(Reply(reply.request_id, KafkaError(code)))

    def _send(self, reply: Reply) -> None:
        if reply.request_id == self._current:
            self._answer, self._has_answer = reply.response, True
            return
        future = self._waiting.pop(reply.request_id, None)
        if future is None or future.done():
            return  # the client has disconnected
        if isinstance(reply.response, KafkaError):
            future.set_exception(reply.response)
            # Marks it as retrieved: if the client is gone, asyncio must not report it.
            future.exception()
        else:
            future.set_result(reply.response)

    # --- time ---------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """The time. If the clock was set or the machine slept, deadlines are moved by the same amount, so that no
        session expires because of it."""
        now = self._clock()
        ahead_ms = now - self._monotonic()
        before_ms = self._clock_ahead_ms
        if before_ms is None:
            self._clock_ahead_ms = ahead_ms
        elif not -CLOCK_JUMP_MS < ahead_ms - before_ms < CLOCK_JUMP_MS:
            self._clock_ahead_ms = ahead_ms
            self._move_deadlines(ahead_ms - before_ms, "the clock jumped by")
        return now

    def _move_deadlines(self, milliseconds: int, why: str) -> None:
        log.warning("%s: %s %.1f s; deadlines are moved", self.topic, why, milliseconds / 1000)
        self._timer_at += milliseconds
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for hosted in self._hosted.values():
            if hosted.state is ACTIVE:
                hosted.shard.on_clock_jump(milliseconds)
                self._arm(hosted.shard.next_deadline())

    def _arm(self, deadline: int | None) -> None:
        """One timer for all shards, at the earliest deadline of any."""
        if deadline is None or self._is_stopped or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(0, deadline - self._clock()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._now()
        late_ms = now - self._timer_at
        if late_ms > CLOCK_JUMP_MS:
            # Leaves time to read the heartbeats that arrived in the meantime.
            self._move_deadlines(late_ms + CLOCK_JUMP_MS, "this broker was blocked for")
        due = []
        for hosted in self._hosted.values():
            if hosted.state is ACTIVE:
                deadline = hosted.shard.next_deadline()
                if deadline is not None and deadline <= now:
                    due.append((deadline, hosted))
                else:
                    self._arm(deadline)
        # All shards loaded at the same time expire offsets at the same time.
        due.sort(key=_first)
        held_ms = self._replicas.clock_guard.held_ms()
        for deadline, hosted in due[:SHARDS_PER_TICK]:
            if self._is_writable(hosted):
                self._step(hosted, lambda shard, now: shard.tick(now, held_ms))
            else:
                # Deadlines are postponed: no session expires while nobody can join, and nothing is lost by waiting.
                hosted.shard.on_clock_jump(now - deadline + UNWRITABLE_PAUSE_MS)
                self._arm(hosted.shard.next_deadline())
        for deadline, hosted in due[SHARDS_PER_TICK:]:
            if hosted.state is ACTIVE:
                self._arm(deadline)

    # --- leading and losing partitions --------------------------------------------------------------------

    def apply(self, image: ClusterImage) -> None:
        """Loads the partitions that this broker now leads, and unloads those it no longer leads."""
        if self._is_stopped:
            return
        self._image = image
        topic = image.topics.get(self.topic)
        mine = {}
        if topic is not None:
            mine = {p.index: p.leader_epoch for p in topic.partitions if p.leader == self._replicas.broker_id}
        for partition in [p for p in self._hosted if p not in mine]:
            self._unload(self._hosted.pop(partition))
        topic_id = b"" if topic is None else topic.topic_id
        for partition, epoch in mine.items():
            hosted = self._hosted.get(partition)
            if hosted is None:
                self._load(partition, epoch, topic_id)
            elif not hosted.may_continue(epoch, topic_id):
                self._unload(hosted)
                self._load(partition, epoch, topic_id)
            else:
                hosted.epoch = epoch
                if hosted.state is ACTIVE:
                    self._step(hosted, lambda shard, now: shard.on_image(image, now))

    def epoch_of(self, partition: int) -> int:
        """The coordinator's epoch: that of its partition's leader."""
        return self._active(partition).epoch

    async def stop(self) -> None:
        """Answers every waiting request with NOT_COORDINATOR. The replica manager closes the logs."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loader.stop()
        for hosted in list(self._hosted.values()):
            self._unload(hosted)
        self._hosted.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(KafkaError(ErrorCode.NOT_COORDINATOR, "the broker is stopping"))
        self._waiting.clear()

    def _unload(self, hosted: HostedShard[S]) -> None:
        self._loader.forget(hosted)
        before = hosted.state
        if before is ShardState.CLOSED:
            return
        hosted.move(ShardState.CLOSED)
        if before is ACTIVE:
            try:
                self._deliver(hosted.shard.on_unloaded())
            except Exception:
                log.exception("%s: could not answer every waiting request", hosted.name)

    def _reload(self, hosted: HostedShard[S]) -> None:
        self._unload(hosted)
        if self._hosted.get(hosted.partition) is hosted:
            del self._hosted[hosted.partition]
            self._load(hosted.partition, hosted.epoch, hosted.topic_id)

    def _load(self, partition: int, epoch: int, topic_id: bytes) -> None:
        replica = self._replicas.find(self.topic, partition)
        if replica is None or not replica.is_leader:
            self._hosted.pop(partition, None)
            return
        hosted = HostedShard(self.topic, partition, epoch, topic_id, self.make_shard(partition))
        self._hosted[partition] = hosted
        hosted.move(ShardState.LOADING)
        if replica.log.log_end_offset == replica.log.log_start_offset:
            hosted.end_offset = replica.log.log_end_offset
            self._activate(hosted)
        else:
            self._loader.add(hosted, replica.log)

    def _cannot_load(self, hosted: HostedShard[S], error: Exception) -> None:
        """Serving with half of its groups missing would be worse than not serving at all."""
        why = error_text(error)
        trace = None if isinstance(error, KafkaError | ValueError) else error
        log.error("%s cannot be loaded: %s", hosted.name, why, exc_info=trace)
        if hosted.state is not ShardState.CLOSED:
            hosted.fail(why)

    def _activate(self, hosted: HostedShard[S]) -> None:
        try:
            now = self._now()
            with garbage_collection_paused():
                effects = hosted.shard.on_loaded(now)
            hosted.move(ACTIVE)
            self._run(hosted, effects)
            # The step may have failed to append, and the shard been closed and loaded again.
            if self._image is not None and hosted.state is ACTIVE:
                self._run(hosted, hosted.shard.on_image(self._image, now))
        except Exception as error:
            self._cannot_load(hosted, error)


async def settled(answer: "R | asyncio.Future[R]") -> R:
    """The reply, whether `submit` or `read` returned it or a future of it."""
    if isinstance(answer, asyncio.Future):
        waited: R = await answer
        return waited
    return answer


def _first(pair: tuple[int, object]) -> int:
    return pair[0]
