"""An incremental fetch session with one broker (KIP-227): requests name only the partitions that changed. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.client.core.offset_requests import ISOLATION_CODES
from ottla.client.core.settings import ConsumerConfig
from ottla.protocol.fetch_session_epochs import INITIAL_EPOCH, NO_SESSION, next_epoch
from ottla.protocol.messages.fetch import FetchRequest
from ottla.types import TopicPartition


class FetchFrom(NamedTuple):
    """Where to continue reading one partition."""

    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int


class SessionRequest(NamedTuple):
    """The session part of a Fetch request."""

    session_id: int
    epoch: int
    changed: dict[TopicPartition, FetchFrom]
    forgotten: dict[TopicPartition, bytes]
    """Partition -> topic id, for those to remove from the session."""


class FetchSession:
    """Client and broker count the requests of a session. If the counts differ, or the broker has dropped the session,
    a full fetch starts a new one."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, FetchFrom] = {}

    def knows(self, partition: TopicPartition) -> bool:
        """Whether the session has this partition, so that responses contain it only when it has changed."""
        return partition in self._known

    def request(self, wanted: Mapping[TopicPartition, FetchFrom]) -> SessionRequest:
        """The next request, for everything that should be fetched now."""
        if self._epoch == INITIAL_EPOCH:
            self._known = dict(wanted)
            return SessionRequest(NO_SESSION, INITIAL_EPOCH, dict(wanted), {})
        changed = {partition: source for partition, source in wanted.items() if self._known.get(partition) != source}
        forgotten = {p: source.topic_id for p, source in self._known.items() if p not in wanted}
        for partition, source in changed.items():
            known = self._known.get(partition)
            if known is not None and known.topic_id != source.topic_id:
                # Deleted and recreated: for the broker it is another topic (KIP-516).
                forgotten[partition] = known.topic_id
        self._known = dict(wanted)
        return SessionRequest(self._session_id, self._epoch, changed, forgotten)

    def on_response(self, session_id: int) -> None:
        """A response without a session error has arrived."""
        if session_id == NO_SESSION:
            self.reset()  # the broker's session cache is full: every request is a full fetch
        elif session_id != self._session_id:
            self._session_id, self._epoch = session_id, next_epoch(INITIAL_EPOCH)
        else:
            self._epoch = next_epoch(self._epoch)

    def reset(self) -> None:
        """Makes the next request a full fetch."""
        self._session_id, self._epoch, self._known = NO_SESSION, INITIAL_EPOCH, {}


def fetch_request(config: ConsumerConfig, asked: SessionRequest, max_wait_ms: int, version: int) -> FetchRequest:
    """The Fetch request for the session's next step."""
    topics: dict[str, Any] = {}
    for partition, source in asked.changed.items():
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = FetchRequest.FetchTopic(
                topic=partition.topic, topic_id=source.topic_id, partitions=[]
            )
        topic.partitions.append(
            FetchRequest.FetchPartition(
                partition=partition.partition,
                current_leader_epoch=source.leader_epoch,
                fetch_offset=source.fetch_offset,
                last_fetched_epoch=source.last_fetched_epoch if version >= 12 else -1,
                partition_max_bytes=source.max_bytes,
            )
        )
    forgotten: dict[tuple[str, bytes], Any] = {}
    for partition, topic_id in asked.forgotten.items():
        entry = forgotten.setdefault(
            (partition.topic, topic_id),
            FetchRequest.ForgottenTopic(topic=partition.topic, topic_id=topic_id, partitions=[]),
        )
        entry.partitions.append(partition.partition)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=ISOLATION_CODES[config.isolation_level],
        session_id=asked.session_id,
        session_epoch=asked.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
        rack_id=config.client_rack,
    )
