"""A client's metadata of the cluster (brokers, topics, leaders, epochs), and when to refresh it. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.core.arguments import check_topic
from ottla.client.core.model import Node, PartitionDescription, TopicDescription
from ottla.client.core.polling import ANY_NODE, Poll, Request
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff, Retry
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.types import ZERO_UUID, TopicPartition

MISSING_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

REFRESHING = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors that mean that the metadata is stale."""

NEW_TOPIC_RETRY_MS = 5
"""The initial wait for a topic that the broker creates on our request; it doubles up to the backoff."""


class Leader(NamedTuple):
    """The leader of a partition and its epoch (-1 if the broker does not send it)."""

    node_id: int
    epoch: int


class ClusterView:
    """The metadata of the cluster. Decides when to request it again.

    A leader is never replaced by one of an older epoch: the response of a broker with stale metadata is ignored.
    """

    def __init__(
        self,
        *,
        max_age_ms: int,
        backoff: Backoff,
        max_idle_ms: int | None = None,
        allow_auto_topic_creation: bool = False,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.max_age_ms = max_age_ms
        self.max_idle_ms = max_idle_ms
        self.backoff = backoff
        self.allow_auto_topic_creation = allow_auto_topic_creation
        self.cluster_id = ""
        self.controller_id = -1
        self.brokers: dict[int, Node] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.partitions: dict[str, tuple[TopicPartition, ...]] = {}
        """The partitions of each known topic, by number. Looked up for every record that is sent."""
        self.topic_errors: dict[str, ErrorCode] = {}
        self.version = 0
        """Incremented with every response, so that others can see that something may have changed."""
        self.last_error: KafkaError | None = None
        """Why the last request failed; None once one has succeeded."""
        self._jitter = jitter
        self._leaders: dict[TopicPartition, Leader] = {}
        self._wanted: dict[str, int] = {}
        self._update_wanted = True
        self._in_flight = False
        self._refreshed_at: int | None = None
        self._retry = Retry(backoff, jitter)
        self._unknown = 0
        """How many responses in a row had an unknown topic."""

    # --- what is known ------------------------------------------------------------------------------------

    def find_leader(self, partition: TopicPartition) -> Leader | None:
        return self._leaders.get(partition)

    def find_partition_count(self, topic: str) -> int | None:
        partitions = self.partitions.get(topic)
        return len(partitions) if partitions is not None else None

    def topic_id(self, topic: str) -> bytes:
        description = self.topics.get(topic)
        return description.topic_id if description is not None else ZERO_UUID

    def led_partitions(self, topic: str) -> list[int]:
        """The partitions of a topic that can be written to now."""
        return [p.partition for p in self.partitions.get(topic, ()) if p in self._leaders]

    # --- what is wanted -----------------------------------------------------------------------------------

    def want(self, topic: str, now: int) -> None:
        """Requests the metadata of a topic from now on (until it has been idle for `max_idle_ms`)."""
        if topic not in self._wanted:
            check_topic(topic)  # an invalid name would make the request fail for all topics
            self._update_wanted = True
            self._unknown = 0
            if not self._retry.failures:
                self._retry.at = now  # the backoff is for repeating the same request
        self._wanted[topic] = now

    def keep_only(self, topics: Iterable[str], now: int) -> None:
        """Requests the metadata of exactly these topics."""
        wanted = set(topics)
        for topic in wanted - self._wanted.keys():
            check_topic(topic)
        for topic in [known for known in self._wanted if known not in wanted]:
            self._drop(topic)
        for topic in wanted:
            self.want(topic, now)

    def request_update(self) -> None:
        """Refreshes the metadata as soon as the backoff allows."""
        self._update_wanted = True

    def learn_leader(self, partition: TopicPartition, node_id: int, epoch: int, nodes: Mapping[int, Node]) -> None:
        """Uses the new leader and its address that newer brokers send with an error (KIP-951)."""
        known = self._leaders.get(partition)
        if node_id < 0 or (known is not None and epoch <= known.epoch):
            return
        self.brokers.update(nodes)
        if node_id in self.brokers:
            self._leaders[partition] = Leader(node_id, epoch)
            self.version += 1

    # --- requesting ---------------------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        if self._in_flight:
            return Poll()
        self._forget_idle(now)
        due_at = 0 if self._refreshed_at is None else self._refreshed_at + self.max_age_ms
        if self._update_wanted:
            due_at = 0
        due_at = max(due_at, self._retry.at)
        if now < due_at:
            return Poll(wake_at=due_at)
        self._in_flight, self._update_wanted = True, False
        asked = list(self._wanted)

        def build(version: int) -> MetadataRequest:
            topics: list[Any] = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in asked]
            if version >= 4:
                return MetadataRequest(topics=topics, allow_auto_topic_creation=self.allow_auto_topic_creation)
            return MetadataRequest(topics=topics)

        request = Request(
            ANY_NODE,
            ApiKey.METADATA,
            build,
            on_response=lambda response, version, at: self.on_response(asked, response, at),
            on_failure=self.on_failure,
        )
        return Poll([request])

    def on_response(self, asked: list[str], response: Any, now: int) -> None:
        self._in_flight = False
        if response.error_code:
            self.on_failure(KafkaError(ErrorCode(response.error_code), "requesting metadata"), now)
            return
        if not response.brokers:
            # A broker that has just started may not know any broker yet, not even itself.
            self.on_failure(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker has no metadata yet"), now)
            return
        self._refreshed_at = now
        self._retry.succeeded()
        self.last_error = None
        self.version += 1
        self.cluster_id = response.cluster_id or ""
        self.controller_id = response.controller_id
        self.brokers = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        unsettled = False
        for topic in response.topics:
            if topic.name in self._wanted:
                unsettled |= not self._take_topic(topic)
        if unsettled:
            self._update_wanted = True
        # Every send to a missing topic requests an update; at most one is sent per backoff.
        delay_ms = self.backoff.delay_ms(1, self._jitter())
        if unsettled and self.allow_auto_topic_creation:
            # A broker creates a topic in a few milliseconds, but responds before that.
            delay_ms = min(delay_ms, NEW_TOPIC_RETRY_MS << min(self._unknown, 20))
            self._unknown += 1
        self._retry.at = now + delay_ms
        if not self._wanted.keys() <= set(asked):
            self._retry.at = now  # topics were added after the request was sent

    def on_failure(self, error: KafkaError, now: int) -> None:
        self._in_flight = False
        self._update_wanted = True
        self.last_error = error
        self._retry.failed(now)

    # --- reading responses ----------------------------------------------------------------------------------------

    def _take_topic(self, topic: Any) -> bool:
        """Reads one topic of a response. False if it should be requested again soon."""
        error = ErrorCode(topic.error_code)
        if error != ErrorCode.NONE:
            self.topic_errors[topic.name] = error
            if error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                self._remove_topic(topic.name)
            return not error.retriable
        self.topic_errors.pop(topic.name, None)
        known = self.topics.get(topic.name)
        description = describe_topic(topic)
        # A new id means that the topic was deleted and recreated: its epochs restart.
        is_same = known is not None and known.topic_id == description.topic_id
        if not is_same:
            self._remove_topic(topic.name)
        for partition in description.partitions:
            self._take_leader(TopicPartition(topic.name, partition.partition), partition)
        self.topics[topic.name] = description
        self.partitions[topic.name] = tuple(TopicPartition(topic.name, i) for i in range(len(description.partitions)))
        return all(partition.leader >= 0 for partition in description.partitions)

    def _take_leader(self, topic_partition: TopicPartition, partition: PartitionDescription) -> None:
        known = self._leaders.get(topic_partition)
        if known is not None and 0 <= partition.leader_epoch < known.epoch:
            return
        if partition.leader < 0 or partition.leader not in self.brokers:
            self._leaders.pop(topic_partition, None)
        else:
            self._leaders[topic_partition] = Leader(partition.leader, partition.leader_epoch)

    def _forget_idle(self, now: int) -> None:
        if self.max_idle_ms is not None:
            for topic in [t for t, used_at in self._wanted.items() if now - used_at > self.max_idle_ms]:
                self._drop(topic)

    def _drop(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self.topic_errors.pop(topic, None)
        self._remove_topic(topic)

    def _remove_topic(self, topic: str) -> None:
        self.topics.pop(topic, None)
        for partition in self.partitions.pop(topic, ()):
            self._leaders.pop(partition, None)


def topic_failure(code: ErrorCode, topic: str) -> KafkaError:
    """The error for a topic that the metadata has only an error code for."""
    return KafkaError(code, f"topic {topic} does not exist" if code in MISSING_TOPIC else f"topic {topic}")


def missing_partition(topic: str, partition: int, count: int, where: str = "") -> KafkaError:
    """The error for a partition that a topic of `count` partitions does not have."""
    detail = f"{where}topic {topic} has partitions 0 to {count - 1}, not {partition}"
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)


def describe_topic(topic: Any) -> TopicDescription:
    """A topic of a Metadata response as a plain value, partitions in order."""
    partitions = [
        PartitionDescription(
            partition=p.partition_index,
            leader=p.leader_id,
            leader_epoch=p.leader_epoch,
            replicas=tuple(p.replica_nodes),
            in_sync_replicas=tuple(p.isr_nodes),
            offline_replicas=tuple(p.offline_replicas),
            error=ErrorCode(p.error_code),
        )
        for p in topic.partitions
    ]
    partitions.sort(key=lambda p: p.partition)
    return TopicDescription(topic.name, topic.topic_id, topic.is_internal, tuple(partitions))
