"""The subscription of a consumer: topics, a pattern or assigned partitions, one kind at a time. Pure."""

import enum
import re
from collections.abc import Callable, Iterable
from typing import Any

from ottla.client.core.arguments import as_names
from ottla.client.core.polling import ANY_NODE, Poll, Request
from ottla.errors import ArgumentError, ErrorCode, KafkaError, OttlaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest


class Kind(enum.Enum):
    """How a consumer gets its partitions. The kinds exclude each other."""

    NONE = "nothing"
    AUTO_TOPICS = "topics"
    AUTO_PATTERN = "a pattern"
    USER_ASSIGNED = "partitions"


class Subscription:
    """The current kind of subscription and its topics or pattern."""

    def __init__(self) -> None:
        self.kind = Kind.NONE
        self.topics: tuple[str, ...] | None = None
        """The subscribed topics. None while a pattern has not been matched against the cluster's topics yet."""
        self.pattern: re.Pattern[str] | None = None

    @property
    def is_automatic(self) -> bool:
        """Whether the group assigns the partitions."""
        return self.kind in (Kind.AUTO_TOPICS, Kind.AUTO_PATTERN)

    def subscribe_topics(self, topics: tuple[str, ...]) -> None:
        self._become(Kind.AUTO_TOPICS)
        self.topics = topics

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        self._become(Kind.AUTO_PATTERN)
        self.pattern = pattern
        self.topics = None

    def assign(self) -> None:
        self._become(Kind.USER_ASSIGNED)

    def clear(self) -> None:
        self.kind = Kind.NONE
        self.topics = self.pattern = None

    def _become(self, kind: Kind) -> None:
        if self.kind not in (Kind.NONE, kind):
            raise OttlaError(
                "Subscription to topics, partitions and pattern are mutually exclusive: "
                f"this consumer already has {self.kind.value}",
                "Call unsubscribe() first.",
            )
        self.kind = kind


def check_topics(topics: Any) -> tuple[str, ...]:
    """The topics to subscribe to, sorted and without duplicates. Raises ArgumentError for invalid names.

    >>> check_topics(["b", "a", "b"])
    ('a', 'b')
    """
    if topics is None:
        raise ArgumentError("Topic collection to subscribe to cannot be None", "An empty list unsubscribes.")
    if isinstance(topics, Iterable) and not isinstance(topics, str):
        topics = list(topics)
        if any(name is None or (isinstance(name, str) and not name.strip()) for name in topics):
            problem = "Topic collection to subscribe to cannot contain None or blank topic"
            raise ArgumentError(problem, "Remove the empty names.")
    names = as_names(topics, "topics")
    return tuple(sorted(set(names)))


def check_pattern(pattern: Any) -> re.Pattern[str]:
    """The compiled pattern. It has to match whole topic names."""
    if isinstance(pattern, str):
        if not pattern:
            raise ArgumentError("Topic pattern to subscribe to cannot be empty", '".*" matches all topics.')
        try:
            return re.compile(pattern)
        except re.error as error:
            hint = 'Use one as in "orders-.*".'
            raise ArgumentError(f"{pattern!r} is not a valid regular expression: {error}", hint) from error
    if not isinstance(pattern, re.Pattern) or not isinstance(pattern.pattern, str):
        hint = 'Write re.compile("orders-.*").'
        raise ArgumentError(f"the pattern must be a string or a compiled pattern, not {pattern!r}", hint)
    return pattern


class TopicWatch:
    """Periodically matches a pattern against the topics of the cluster. poll() requests metadata of all topics."""

    def __init__(
        self,
        *,
        max_age_ms: int,
        exclude_internal: bool,
        on_topics: Callable[[tuple[str, ...], int], None],
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.pattern: re.Pattern[str] | None = None
        self._max_age_ms = max_age_ms
        self._exclude_internal = exclude_internal
        self._on_topics = on_topics
        self._backoff = backoff
        self._jitter = jitter
        self._watch_id = 0
        self._in_flight = False
        self._due_at = 0
        self._failures = 0
        self._matched_at: int | None = None

    def watch(self, pattern: re.Pattern[str] | None) -> None:
        """Sets the pattern to match; None stops."""
        self.pattern = pattern
        self._watch_id += 1
        self._in_flight = False
        self._due_at = self._failures = 0
        self._matched_at = None

    def is_fresh(self, now: int) -> bool:
        """Whether the pattern was matched just now. If not, requests the topics again.

        A member calls this before it joins. If the members joined with the topics of their last regular refresh, a new
        topic would cause a rebalance for each of them: they refresh at different times. After a failed request a
        member joins with the topics it has.
        """
        if self.pattern is None or self._failures:
            return True
        if self._matched_at is not None and now <= self._matched_at + self._backoff.initial_ms:
            return True
        self._due_at = 0
        return False

    def poll(self, now: int) -> Poll:
        if self.pattern is None or self._in_flight:
            return Poll()
        if now < self._due_at:
            return Poll(wake_at=self._due_at)
        self._in_flight = True
        watch_id = self._watch_id

        def build(version: int) -> MetadataRequest:
            # In version 0 an empty list means all topics; from version 1 on, null does.
            message = MetadataRequest(topics=None if version >= 1 else [])
            if version >= 4:
                message.allow_auto_topic_creation = False
            return message

        def on_response(response: Any, version: int, now: int) -> None:
            if watch_id == self._watch_id:
                self._in_flight = False
                # A broker that has just started may not know any brokers or topics yet.
                if response.error_code or not response.brokers:
                    self._try_again(now)
                else:
                    self._take(response, now)

        def on_failure(error: KafkaError, now: int) -> None:
            if watch_id == self._watch_id:
                self._in_flight = False
                self._try_again(now)

        return Poll([Request(ANY_NODE, ApiKey.METADATA, build, on_response, on_failure)])

    def _try_again(self, now: int) -> None:
        self._failures += 1
        self._due_at = now + self._backoff.delay_ms(self._failures, self._jitter())

    def _take(self, response: Any, now: int) -> None:
        assert self.pattern is not None
        self._failures = 0
        self._matched_at = now
        self._due_at = now + self._max_age_ms
        matching = [
            topic.name
            for topic in response.topics
            if topic.name
            and ErrorCode(topic.error_code) == ErrorCode.NONE
            and not (self._exclude_internal and topic.is_internal)
            and self.pattern.fullmatch(topic.name)
        ]
        self._on_topics(tuple(sorted(matching)), now)
