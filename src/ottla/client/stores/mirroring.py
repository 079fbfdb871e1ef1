"""Commits mirrored offsets to a group without members, unless the group has offsets of another origin. Pure."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.model import CommittedOffset
from ottla.client.core.offset_requests import MAX_VERSION_WITH_NAMES
from ottla.client.core.polling import Decider, Poll, Request
from ottla.client.core.settings import ConsumerConfig
from ottla.client.group.commits import Commits
from ottla.client.group.protocol import offset_fetch_request
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff, Retry
from ottla.protocol.api import ApiKey
from ottla.protocol.wire_values import NO_GENERATION
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")

MARK = "mirrored"
"""The metadata of mirrored offsets. Only offsets with this metadata may be overwritten."""


class Mirroring:
    """Commits offsets to a group, the newest last. A permanent failure is logged once."""

    def __init__(
        self,
        config: ConsumerConfig,
        group_id: str,
        view: ClusterView,
        *,
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.group_id = group_id
        self.refusal: str | None = None
        """Why nothing is committed any more."""
        self._config = replace(config, group_id=group_id, group_instance_id=None, isolation_level="read_uncommitted")
        self._coordinator = CoordinatorFinder(group_id, view, backoff=backoff, jitter=jitter)
        self._commits = Commits(
            self._config,
            view,
            self._coordinator,
            on_fenced=lambda error, generation: None,
            backoff=backoff,
            jitter=jitter,
        )
        self._waiting: dict[TopicPartition, CommittedOffset] = {}
        self._ours: set[TopicPartition] = set()
        """Partitions that have a mirrored offset in the group, or none."""
        self._in_flight = False
        self._retry = Retry(backoff, jitter)

    @property
    def deciders(self) -> Iterable[Decider]:
        return (self, self._commits, self._coordinator)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self._commits.is_idle

    def show(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        if self.refusal is None:
            self._waiting.update(offsets)

    def poll(self, now: int) -> Poll:
        poll = Poll()
        for error in self._coordinator.errors:
            self._refuse(str(error))
        self._coordinator.errors.clear()
        if not self._waiting or self._in_flight:
            return poll
        unknown = self._waiting.keys() - self._ours
        if unknown:
            self._look(unknown, now, poll)
        elif self._commits.is_idle:  # one at a time: newer offsets go with the next one
            offsets, self._waiting = self._waiting, {}
            self._commits.add(
                offsets,
                generation=NO_GENERATION,
                member_id="",
                now=now,
                timeout_ms=self._config.default_api_timeout_ms,
                on_done=self._on_committed,
            )
            poll.wake_by(now)  # so that the commits are polled again if they were polled before us
        return poll

    def _on_committed(self, offsets: dict[TopicPartition, CommittedOffset], error: KafkaError | None) -> None:
        if error is not None and not error.retriable:
            self._refuse(f"{error} (does the group have members?)")

    def _look(self, partitions: Iterable[TopicPartition], now: int, poll: Poll) -> None:
        """Reads the offsets that the group has for these partitions."""
        if not self._retry.is_due(now):
            poll.wake_by(self._retry.at)
            return
        node_id = self._coordinator.find()
        if node_id is None:
            return
        self._in_flight = True
        asked = sorted(partitions)

        def answered(response: Any, version: int, now: int) -> None:
            self._in_flight = False
            answer = response.groups[0] if response.groups else response
            results = [(topic.name, part) for topic in answer.topics for part in topic.partitions]
            errors = [ErrorCode(code) for code in (answer.error_code, *(part.error_code for _, part in results))]
            error = next((error for error in errors if error != ErrorCode.NONE), None)
            if error is not None:
                self._coordinator.note(error, node_id)
                self._failed(KafkaError(error, "reading its offsets"), now)
                return
            self._retry.succeeded()
            foreign = [name for name, part in results if part.committed_offset >= 0 and part.metadata != MARK]
            if foreign:
                self._refuse(f"it has offsets that were not mirrored, for {foreign[0]}")
            self._ours.update(asked)

        def failed(error: KafkaError, now: int) -> None:
            self._in_flight = False
            self._coordinator.note_failure(error, node_id)
            self._failed(error, now)

        build = offset_fetch_request(self._config, asked)
        poll.requests.append(
            Request(node_id, ApiKey.OFFSET_FETCH, build, answered, failed, max_version=MAX_VERSION_WITH_NAMES)
        )

    def _failed(self, error: KafkaError, now: int) -> None:
        self._retry.failed(now)
        if not error.retriable:
            self._refuse(str(error))

    def _refuse(self, why: str) -> None:
        if self.refusal is None:
            self.refusal = why
            log.warning("group %s: offsets are not mirrored: %s", self.group_id, why)
        self._waiting.clear()
