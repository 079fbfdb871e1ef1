"""A fetch session with one broker: it remembers what we read, so that requests carry only what changed. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from ottla.types import INT32_MAX, TopicPartition

FULL_EPOCH = 0
"""Asks for a new session, naming every partition."""


class FetchFrom(NamedTuple):
    """Where reading of one partition goes on."""

    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int


class SessionRequest(NamedTuple):
    """What the next request of a session says."""

    session_id: int
    epoch: int
    changed: dict[TopicPartition, FetchFrom]
    forgotten: dict[TopicPartition, bytes]
    """Partition -> topic id, for those that the broker should leave out from now on."""


class FetchSession:
    """Both sides count requests; when the counts differ, or the broker forgot, it starts again in full."""

    def __init__(self) -> None:
        self._session_id = 0
        self._epoch = FULL_EPOCH
        self._known: dict[TopicPartition, FetchFrom] = {}

    def knows(self, partition: TopicPartition) -> bool:
        """Whether the broker has this partition in the session, and so tells only what is new of it."""
        return partition in self._known

    def request(self, wanted: Mapping[TopicPartition, FetchFrom]) -> SessionRequest:
        """The next request, given everything that should be fetched now."""
        if self._epoch == FULL_EPOCH:
            self._known = dict(wanted)
            return SessionRequest(0, FULL_EPOCH, dict(wanted), {})
        changed = {partition: source for partition, source in wanted.items() if self._known.get(partition) != source}
        forgotten = {p: source.topic_id for p, source in self._known.items() if p not in wanted}
        for partition, source in changed.items():
            known = self._known.get(partition)
            if known is not None and known.topic_id != source.topic_id:
                # Deleted and made again: to the broker it is another topic.
                forgotten[partition] = known.topic_id
        self._known = dict(wanted)
        return SessionRequest(self._session_id, self._epoch, changed, forgotten)

    def on_response(self, session_id: int) -> None:
        """A response came without an error for the session itself."""
        if session_id == 0:
            self.reset()  # the broker keeps no session for us: every request is a full one
        elif session_id != self._session_id:
            self._session_id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == INT32_MAX else self._epoch + 1

    def reset(self) -> None:
        """Starts again in full with the next request."""
        self._session_id, self._epoch, self._known = 0, FULL_EPOCH, {}
