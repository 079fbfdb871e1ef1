"""Decides which batches go to which broker and when, and handles the responses. Pure."""

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.client.core.cluster_view import REFRESHING, ClusterView, Leader
from ottla.client.core.model import Node
from ottla.client.core.polling import ANY_NODE, Poll, Request
from ottla.client.core.settings import ProducerConfig
from ottla.client.producer.accumulator import Accumulator, ProducerBatch
from ottla.client.producer.idempotence import Idempotence
from ottla.client.transactions.errors import judge_produce
from ottla.client.transactions.requests import CONCURRENT_BACKOFF_MS
from ottla.client.transactions.state import State
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff, Retry
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.compression import Codec
from ottla.types import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from ottla.client.transactions.transaction_manager import TransactionManager

FATAL = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors after which an idempotent producer can no longer guarantee exactly-once, in-order delivery."""

MAYBE_APPENDED = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        # A leader answers these either before the append or while it waits for the replicas; we cannot tell which.
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors after which the broker may or may not have stored the batch."""

LOOK_FOR_LEADERS_MS = 250
"""How often metadata is refreshed while batches wait because their leader fails. All producers do this at the same
time, so it must not be too often."""
MAX_VERSION_WITHOUT_TOPIC_ID = 12
"""From version 13 on, Produce names topics by id only (KIP-516)."""


class _Sent:
    """A Produce request in flight."""

    __slots__ = ("awaits_leader", "batches", "first_created_at", "node_id", "topic_ids")

    def __init__(self, node_id: int, batches: dict[TopicPartition, ProducerBatch], topic_ids: dict[str, bytes]) -> None:
        self.node_id = node_id
        self.batches = batches
        self.topic_ids = topic_ids
        """As of sending: by the time of the response a topic may be deleted, or recreated with another id."""
        self.awaits_leader = any(batch.awaits_leader for batch in batches.values())
        """It retries batches that failed at this leader, and may wait for a connection to it."""
        self.look_for_first()

    def look_for_first(self) -> None:
        """When the oldest batch that has no outcome yet was created; -1 without one."""
        waiting = [batch.created_at for batch in self.batches.values() if not batch.outcome.is_done]
        self.first_created_at = min(waiting, default=-1)


class Sender:
    """Decides what the producer sends. Retries keep their order and, with idempotence, their sequence numbers."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: Accumulator,
        view: ClusterView,
        *,
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
        reconnect_at: Callable[[int], int] = lambda node_id: 0,
    ) -> None:
        self.fatal_error: KafkaError | None = None
        """Once set, every send() fails with it."""
        self.memory_is_short = False
        """A send() waits for buffer memory, so batches do not linger."""
        self._config = config
        self._accumulator = accumulator
        self._view = view
        self._backoff = backoff
        self._jitter = jitter
        self._reconnect_at = reconnect_at
        """When a broker that could not be reached may be connected to again."""
        self._codec = Codec[config.compression_type.upper()]
        self._idempotence = Idempotence() if config.enable_idempotence else None
        self._in_flight: dict[int, int] = defaultdict(int)
        self._sent: dict[_Sent, None] = {}
        self._one_by_one = self._idempotence is None and config.max_in_flight_requests_per_connection == 1
        """Without sequence numbers, max.in.flight = 1 keeps the order. That must hold per partition, not only per
        connection: the partition may move to another leader."""
        self.transactions: TransactionManager | None = None
        """Set for a transactional producer: obtains the producer id and decides when a batch may be sent."""
        self.records_sent = self.bytes_sent = self.batches_sent = self.records_failed = self.batches_retried = 0
        """For the metrics. Updated once per batch."""
        self._is_abandoned = False
        self._asking_producer_id = False
        self._producer_id_retry = Retry(backoff, jitter)
        self._look_at = 0
        """When leaders that fail are looked up again."""

    @property
    def is_writing(self) -> bool:
        """Whether Produce requests are in flight."""
        return bool(self._sent)

    # --- deciding -----------------------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        self._expire_sent(now, poll)
        if any(sent.awaits_leader for sent in self._sent):
            poll.wake_by(self._look_for_leaders(now))
        partitions = self._accumulator.partitions(now)
        if self.transactions is not None and self.transactions.state is State.FATAL_ERROR:
            self._become_fatal(self.transactions.error)
        if self.fatal_error is not None:
            self._fail_everything(partitions, self.fatal_error)
            return poll
        if self.transactions is not None and self.transactions.drops_records:
            aborted = KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction of this record was aborted")
            self._fail_everything(partitions, self.transactions.error or aborted)
            return poll
        if not partitions:
            return poll
        self._expire(partitions, now, poll)
        if self._idempotence is not None and self.transactions is None:
            self._restart_unresolved()  # after _expire(), which may add some: nothing else would wake us for them
        if self._idempotence is not None and not self._idempotence.has_producer_id:
            if self.transactions is None:
                self._ask_producer_id(now, poll)
            return poll
        self._send_ready(now, poll)
        return poll

    def _send_ready(self, now: int, poll: Poll) -> None:
        """Requests with one batch of each partition that is ready, until brokers have enough in flight."""
        limit = self._config.max_in_flight_requests_per_connection
        candidates = self._accumulator.partitions(now)
        while candidates:
            by_node: dict[int, list[TopicPartition]] = defaultdict(list)
            for partition in candidates:
                node_id = self._destination(partition, now, poll)
                if node_id is not None and self._in_flight[node_id] < limit:
                    by_node[node_id].append(partition)
            candidates = []
            for node_id, partitions in by_node.items():
                candidates += self._send_to(node_id, partitions, now, poll)

    def _destination(self, partition: TopicPartition, now: int, poll: Poll) -> int | None:
        """The leader to send the partition's first batch to now, or None if it has to wait."""
        batch = self._accumulator.head(partition)
        if batch is None or (self._one_by_one and any(partition in sent.batches for sent in self._sent)):
            return None
        self._view.want(partition.topic, now)
        is_urgent = self.memory_is_short or (self.transactions is not None and self.transactions.is_completing)
        ready_at = self._accumulator.ready_at(partition, is_urgent)
        leader = self._view.find_leader(partition)
        if ready_at > now and not _has_new_leader(batch, leader):
            poll.wake_by(ready_at)
            if batch.awaits_leader:
                poll.wake_by(self._look_for_leaders(now))
            return None
        if self._idempotence is not None and not self._idempotence.can_send(batch):
            return None
        if leader is None:
            self._view.request_update()
            poll.wake_by(now + self._backoff.initial_ms)
            return None
        if self.transactions is not None and not self.transactions.may_send(partition):
            return None
        reconnect_at = self._reconnect_at(leader.node_id)
        if reconnect_at > now:
            # Not sent earlier: the request would wait for the connection, even after another broker became the leader.
            poll.wake_by(reconnect_at)
            poll.wake_by(self._look_for_leaders(now))
            return None
        return leader.node_id

    def _look_for_leaders(self, now: int) -> int:
        """Refreshes the metadata while a leader fails, more often than batches are sent to it again: otherwise its
        successor would be noticed up to retry.backoff.max.ms late. Returns when to call this again."""
        if now >= self._look_at:
            self._view.request_update()
            self._look_at = now + LOOK_FOR_LEADERS_MS
        return self._look_at

    def _send_to(self, node_id: int, partitions: list[TopicPartition], now: int, poll: Poll) -> list[TopicPartition]:
        """Sends one request to one leader. Returns the partitions that may have more batches to send."""
        batches: dict[TopicPartition, ProducerBatch] = {}
        size_bytes = 0
        for partition in partitions:
            head = self._accumulator.head(partition)
            assert head is not None
            if batches and size_bytes + head.size_bytes > self._config.max_request_size:
                continue
            batch = self._accumulator.take(partition, now)
            if self._idempotence is not None:
                self._idempotence.sending(batch)
            batch.attempts += 1
            leader = self._view.find_leader(partition)
            batch.attempts_there = 1 if leader != batch.sent_to else batch.attempts_there + 1
            batch.sent_to = leader
            batches[partition] = batch
            size_bytes += head.size_bytes
        topic_ids = {partition.topic: self._view.topic_id(partition.topic) for partition in batches}
        max_version = MAX_VERSION_WITHOUT_TOPIC_ID if ZERO_UUID in topic_ids.values() else None
        if self.transactions is not None and self.transactions.produce_version_max is not None:
            max_version = self.transactions.produce_version_max
        self._in_flight[node_id] += 1
        sent = _Sent(node_id, batches, topic_ids)
        sent.awaits_leader |= self._reconnect_at(node_id) > 0
        self._sent[sent] = None
        poll.requests.append(
            Request(
                node_id,
                ApiKey.PRODUCE,
                lambda version: self._build(sent),
                on_response=lambda response, version, at: self._on_response(sent, response, at),
                on_failure=lambda error, at: self._on_failure(sent, error, at),
                max_version=max_version,
                expects_response=self._config.acks_code != 0,
            )
        )
        return partitions

    def _build(self, sent: _Sent) -> ProduceRequest:
        topics: dict[str, Any] = {}
        for partition, batch in sent.batches.items():
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = ProduceRequest.TopicProduceData(
                    name=partition.topic, topic_id=sent.topic_ids[partition.topic], partition_data=[]
                )
            records = batch.encode(self._codec, self._config.compression_level, self.transactions is not None)
            topic.partition_data.append(ProduceRequest.PartitionProduceData(index=partition.partition, records=records))
        return ProduceRequest(
            transactional_id=self.transactions.transactional_id if self.transactions is not None else None,
            acks=self._config.acks_code,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    # --- responses ----------------------------------------------------------------------------------------

    def _on_response(self, sent: _Sent, response: Any, now: int) -> None:
        if self._is_abandoned:
            return
        batches = self._complete(sent)
        if response is None:  # acks=0: the broker does not respond
            for batch in batches.values():
                self._succeed(batch, -1, -1)
            return
        names = {topic_id: name for name, topic_id in sent.topic_ids.items()}
        nodes = {n.node_id: Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints}
        answered = set()
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for result in topic.partition_responses:
                partition = TopicPartition(name, result.index)
                answered.add(partition)
                hint = result.current_leader  # set with NOT_LEADER_OR_FOLLOWER: saves a metadata request (KIP-951)
                if self._view.topic_id(name) == sent.topic_ids.get(name):
                    self._view.learn_leader(partition, hint.leader_id, hint.leader_epoch, nodes)
                if partition in batches:
                    self._settle(batches[partition], result, now)
        for partition in batches.keys() - answered:
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker's response does not include {partition}")
            self._fail_or_retry(batches[partition], error, now)

    def _on_failure(self, sent: _Sent, error: KafkaError, now: int) -> None:
        if self._is_abandoned:
            return
        for batch in self._complete(sent).values():
            self._fail_or_retry(batch, error, now)

    def _complete(self, sent: _Sent) -> dict[TopicPartition, ProducerBatch]:
        self._in_flight[sent.node_id] -= 1
        del self._sent[sent]
        return sent.batches

    def _settle(self, batch: ProducerBatch, result: Any, now: int) -> None:
        code = ErrorCode(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._succeed(batch, result.base_offset, result.log_append_time_ms)
        elif code == ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1 and not batch.outcome.is_done:
            # Batch sizes are estimates, and the topic's max.message.bytes is unknown here: split and retry (KIP-126).
            halves = self._accumulator.split(batch)
            if self._idempotence is not None:
                self._idempotence.replaced(batch, halves)
        else:
            size = f" of up to {batch.size_bytes} bytes" if code == ErrorCode.MESSAGE_TOO_LARGE else ""
            detail = result.error_message or f"{batch.record_count} records{size} for {batch.partition}"
            record_errors = {  # the broker names the invalid records of the batch (KIP-467)
                item.batch_index: KafkaError(code, item.batch_index_error_message or detail)
                for item in result.record_errors
            }
            self._fail_or_retry(batch, KafkaError(code, detail), now, record_errors)

    def _fail_or_retry(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        now: int,
        record_errors: dict[int, KafkaError] | None = None,
    ) -> None:
        code = error.code
        if code in MAYBE_APPENDED:
            batch.maybe_appended = True
        if code in REFRESHING:
            self._view.request_update()
        idempotence = self._idempotence
        retriable = error.retriable
        if idempotence is not None and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Expected while an earlier batch is to be retried. If this is the first one, records were lost.
            retriable = not idempotence.is_first(batch)
        ends_numbering = code in FATAL or code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if idempotence is not None and not retriable and ends_numbering and self.transactions is None:
            self._become_fatal(error)
        in_time = now < batch.created_at + self._config.delivery_timeout_ms
        if retriable and in_time and batch.attempts <= self._config.retries and self.fatal_error is None:
            if idempotence is not None:
                idempotence.will_retry(batch)
            delay_ms = self._backoff.delay_ms(batch.attempts_there, self._jitter())
            if code == ErrorCode.CONCURRENT_TRANSACTIONS:  # the write adds the partition implicitly (KIP-890)
                delay_ms = min(delay_ms, CONCURRENT_BACKOFF_MS)
            batch.retry_at = now + delay_ms
            batch.awaits_leader = code in REFRESHING
            self.batches_retried += 1
            self._accumulator.put_back(batch)
            return
        if idempotence is not None:
            if batch.maybe_appended:
                idempotence.lost(batch)
            else:
                idempotence.refused(batch)
        self._fail(batch, error, record_errors)

    def _succeed(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        if self._idempotence is not None:
            self._idempotence.succeeded(batch)
        if batch.outcome.is_done:
            return  # too late: delivery.timeout.ms has failed it already
        self.records_sent += batch.record_count
        self.bytes_sent += batch.size_bytes
        self.batches_sent += 1
        self._accumulator.finish(batch)
        batch.outcome.succeed(base_offset, log_append_time_ms)

    def _fail(
        self, batch: ProducerBatch, error: KafkaError, record_errors: dict[int, KafkaError] | None = None
    ) -> None:
        if batch.outcome.is_done:
            return
        self.records_failed += batch.record_count
        self._accumulator.finish(batch)
        if self.transactions is not None and not self._is_abandoned:
            was_numbered = batch.base_sequence >= 0
            self.transactions.batch_failed(error, judge_produce(error.code), was_numbered=was_numbered)
        if self.transactions is not None:
            batch.outcome.inspect()  # the program learns it from the commit
        batch.outcome.fail(error, record_errors, batch.record_count)

    # --- timeouts -----------------------------------------------------------------------------------------

    def _expire(self, partitions: list[TopicPartition], now: int, poll: Poll) -> None:
        """Fails queued batches older than `delivery.timeout.ms` (KIP-91)."""
        timeout_ms = self._config.delivery_timeout_ms
        for partition in partitions:
            for batch in self._accumulator.take_late(partition, now - timeout_ms):
                if self._idempotence is not None and batch.base_sequence >= 0:
                    self._idempotence.gave_up_waiting(batch)
                self._fail(batch, self._late(batch))
            head = self._accumulator.head(partition)
            if head is not None:
                poll.wake_by((head.created_at if head.created_at >= 0 else now) + timeout_ms)

    def _expire_sent(self, now: int, poll: Poll) -> None:
        """Fails batches in flight that are too old. They keep their sequence numbers until the request completes."""
        for sent in self._sent:
            if sent.first_created_at < 0:
                continue
            if sent.first_created_at + self._config.delivery_timeout_ms <= now:
                for batch in sent.batches.values():
                    if batch.created_at + self._config.delivery_timeout_ms <= now:
                        self._fail(batch, self._late(batch))
                sent.look_for_first()
            if sent.first_created_at >= 0:
                poll.wake_by(sent.first_created_at + self._config.delivery_timeout_ms)

    def _late(self, batch: ProducerBatch) -> KafkaError:
        timeout_ms = self._config.delivery_timeout_ms
        detail = f"{batch.record_count} records for {batch.partition} were not stored within {timeout_ms} ms"
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)

    # --- producer id --------------------------------------------------------------------------------------

    def _ask_producer_id(self, now: int, poll: Poll) -> None:
        if self._asking_producer_id:
            return
        if not self._producer_id_retry.is_due(now):
            poll.wake_by(self._producer_id_retry.at)
            return
        self._asking_producer_id = True
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0x7FFFFFFF)
        poll.requests.append(
            Request(
                ANY_NODE,
                ApiKey.INIT_PRODUCER_ID,
                lambda version: request,
                on_response=self._on_producer_id,
                on_failure=self._on_no_producer_id,
                max_version=5,  # version 6 adds two-phase commit (KIP-939)
            )
        )

    def _on_producer_id(self, response: Any, version: int, now: int) -> None:
        code = ErrorCode(response.error_code)
        if code != ErrorCode.NONE:
            self._on_no_producer_id(KafkaError(code, "requesting a producer id"), now)
            return
        self._asking_producer_id = False
        self._producer_id_retry.succeeded()
        assert self._idempotence is not None
        self._idempotence.set_producer_id(response.producer_id, response.producer_epoch)

    def _on_no_producer_id(self, error: KafkaError, now: int) -> None:
        self._asking_producer_id = False
        self._producer_id_retry.failed(now)
        if not error.retriable:
            self._become_fatal(error)

    def use_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Restarts all sequences: the transactional producer has a new id or epoch."""
        assert self._idempotence is not None
        self._idempotence.restart(producer_id, producer_epoch)

    def _restart_unresolved(self) -> None:
        assert self._idempotence is not None
        for partition in self._idempotence.unresolved():
            doubtful = self._idempotence.restart_partition(partition)
            self._accumulator.drop(doubtful)
            for batch in doubtful:
                detail = f"{batch.record_count} records for {partition} may or may not have been stored"
                self._fail(batch, KafkaError(ErrorCode.NETWORK_EXCEPTION, detail))

    # --- fatal errors and closing -------------------------------------------------------------------------

    def _become_fatal(self, error: KafkaError | None) -> None:
        if self.fatal_error is None and error is not None:
            self.fatal_error = error
            self._accumulator.stop(error)

    def abandon(self, error: KafkaError, *, is_intended: bool = False) -> None:
        """Fails everything that is not stored yet, because the producer closes. Later responses are ignored."""
        self._is_abandoned = True
        for batch in list(self._accumulator.unfinished):
            if is_intended:
                batch.outcome.inspect()
            self._fail(batch, error)

    def _fail_everything(self, partitions: list[TopicPartition], error: KafkaError) -> None:
        for partition in partitions:
            queued = self._accumulator.queued(partition)
            self._accumulator.drop(queued)
            for batch in queued:
                if self._idempotence is not None and batch.base_sequence >= 0:
                    self._idempotence.gave_up_waiting(batch)
                self._fail(batch, error)


def _has_new_leader(batch: ProducerBatch, leader: Leader | None) -> bool:
    """Whether a batch that failed would go to another leader now. The back-off was for the old one (KIP-951)."""
    return batch.awaits_leader and leader is not None and batch.sent_to is not None and leader != batch.sent_to
