"""How far the queries are behind the ends of their topics, measured in the background of a run."""

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.client.core.lag import total_record_lag
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition, offsets_from_topics

if TYPE_CHECKING:
    from ottla.client.blocking import Admin

POLL_INTERVAL_S = 1.0
Positions = Mapping[str, Mapping[str, int]]


class LagWatch:
    """Fetches the end offsets every second, in its own thread. If the brokers do not answer, the lag is unknown."""

    def __init__(self, bootstrap: str, kafka: Mapping[str, str]) -> None:
        self._settings = admin_settings(bootstrap, kafka)
        self._positions: dict[str, Positions] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, query: str, positions: Positions) -> None:
        self._positions[query] = positions
        if self._thread is None and positions:
            self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)
            self._thread.start()

    def lag_of(self, query: str) -> int | None:
        """Records between a query and the ends of its partitions; None if it is unknown."""
        return lag_between(self._positions.get(query) or {}, self._ends)

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        from ottla.client.blocking import Admin

        with contextlib.suppress(OttlaError, KafkaError), Admin(self._settings) as admin:
            while not self._closed.wait(POLL_INTERVAL_S):
                wanted = {topic for positions in list(self._positions.values()) for topic in positions}
                try:
                    self._ends = end_offsets(admin, sorted(wanted))
                except (KafkaError, OSError):
                    self._ends = {}


def lag_between(positions: Positions, ends: Mapping[TopicPartition, int]) -> int | None:
    """The lag over the topics in `positions`.

    >>> lag_between({"orders": {"0": 5}}, {TopicPartition("orders", 0): 8, TopicPartition("orders", 1): 2})
    5
    """
    own = offsets_from_topics(positions)
    return total_record_lag(own, {partition: end for partition, end in ends.items() if partition.topic in positions})


def end_offsets(admin: "Admin", topics: list[str]) -> dict[TopicPartition, int]:
    """The end of every partition of some topics, as a read_committed consumer sees it."""
    from ottla.client.core.model import LATEST

    if not topics:
        return {}
    partitions = [
        TopicPartition(topic.name, index)
        for topic in admin.describe_topics(topics)
        for index in range(len(topic.partitions))
    ]
    found = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level="read_committed")
    return {partition: place.offset for partition, place in found.items() if place is not None}


def admin_settings(bootstrap: str, kafka: Mapping[str, str]) -> dict[str, str]:
    """The settings of an admin client whose calls return or fail within seconds."""
    from ottla.client.core.foreign_settings import security_name
    from ottla.client.core.settings import AdminConfig
    from ottla.config import settings_of
    from ottla.pipeline.definition.secrets import resolve

    known = settings_of(AdminConfig)
    named = {security_name(name): value for name, value in kafka.items()}
    chosen = {name: value for name, value in named.items() if name in known}
    return {**resolve(chosen), "bootstrap.servers": bootstrap, "default.api.timeout.ms": "5000"}
