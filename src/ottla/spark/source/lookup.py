"""Looks up the partitions of a source's topics, and where they begin and end."""

import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Self

from ottla.client.blocking import Admin
from ottla.client.core.model import EARLIEST, LATEST, TopicDescription
from ottla.client.core.settings import AdminConfig
from ottla.clock import monotonic
from ottla.config import settings_of
from ottla.errors import ErrorCode, KafkaError, OttlaError, did_you_mean
from ottla.spark.source.offsets import METADATA_DELAY_S, Found, Offsets, SourceOffset, may_be_stale
from ottla.spark.source.options import Bound, SourceOptions
from ottla.types import ZERO_UUID, TopicPartition

log = logging.getLogger("ottla.spark")


class Lookup:
    """The lookups of one source, over one admin client. Not shared between processes."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        known = settings_of(AdminConfig)
        chosen = {name: value for name, value in options.client_settings.items() if name in known}
        self.settings = {"client.id": "ottla-spark", **chosen}
        self.admin = Admin(self.settings)
        self._topics: list[TopicDescription] = []
        self._topics_until = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.admin.close()

    # --- partitions ---------------------------------------------------------------------------------------

    def found(self, *, must_exist: bool) -> Found:
        """Every subscribed partition. With `must_exist` a missing topic is an error."""
        deadline = monotonic() + METADATA_DELAY_S
        while True:
            partitions, topic_ids = self.partitions(must_exist=must_exist)
            try:
                earliest = self.offsets(dict.fromkeys(partitions, EARLIEST))
                return Found(earliest, self.offsets(dict.fromkeys(partitions, LATEST)), topic_ids)
            except KafkaError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or monotonic() >= deadline:
                    raise
            # One broker knows the topic, but its leader does not (yet, or any more).
            self._topics = []
            time.sleep(0.1)

    def partitions(self, *, must_exist: bool) -> tuple[list[TopicPartition], dict[str, str]]:
        """The partitions in order, and the ids of their topics."""
        if must_exist or not self._topics or monotonic() >= self._topics_until:
            self._topics = self._described(must_exist)
            self._topics_until = monotonic() + self.options.metadata_cache_ms / 1000
        partitions = [TopicPartition(topic.name, p.partition) for topic in self._topics for p in topic.partitions]
        if self.options.subscription.partitions:
            there, wanted = set(partitions), self.options.subscription.partitions
            missing = [partition for partition in wanted if partition not in there]
            if missing and must_exist:
                raise _missing_partitions("assign", missing, there)
            partitions = [partition for partition in wanted if partition in there]
        topic_ids = {topic.name: topic.id_text for topic in self._topics if topic.topic_id != ZERO_UUID}
        return sorted(partitions), topic_ids

    def _described(self, must_exist: bool) -> list[TopicDescription]:
        subscription = self.options.subscription
        if subscription.pattern:
            pattern = re.compile(subscription.pattern)
            internal = self.options.client_settings.get("exclude.internal.topics", "true").lower() == "false"
            topics = self.admin.list_topics(include_internal=internal)
            return [topic for topic in topics if pattern.fullmatch(topic.name)]
        names = subscription.topics or tuple(dict.fromkeys(p.topic for p in subscription.partitions))
        try:
            return self.admin.describe_topics(names)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        there = {topic.name: topic for topic in self.admin.list_topics(include_internal=True)}
        missing = [name for name in names if name not in there]
        if missing and must_exist:
            raise self._missing_topic(missing[0], there)
        return [there[name] for name in names if name in there]

    def _missing_topic(self, name: str, there: Iterable[str]) -> OttlaError:
        hint = did_you_mean(name, there, f"Create it first, for example with: ottla topic create {name}.")
        return OttlaError(f"there is no topic {name} at {self.options.bootstrap}", hint)

    # --- offsets ------------------------------------------------------------------------------------------

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """EARLIEST or LATEST of each; for read_committed the latest is the last stable offset."""
        if not wanted:
            return {}
        found = self.admin.list_offsets(wanted, isolation_level=self.options.isolation_level)
        return {partition: result.offset if result is not None else 0 for partition, result in found.items()}

    def settled(self, start: SourceOffset, found: Found | None = None) -> Found:
        """The current offsets, or `found` if they are known. Looks them up again if they suggest a data loss.

        It may not be one: a broker may have stale metadata of a topic that is new, was recreated or gained partitions;
        a new leader may not know the high watermark yet.
        """
        found = found or self.found(must_exist=False)
        deadline = monotonic() + METADATA_DELAY_S
        while may_be_stale(start, found) and monotonic() < deadline:
            time.sleep(0.1)
            found = self._find_again()
        for _ in range(self.options.offset_retries):
            if all(found.latest.get(partition, at) >= at for partition, at in start.positions.items()):
                break
            time.sleep(self.options.offset_retry_interval_ms / 1000)
            found = self._find_again()
        return found

    def _find_again(self) -> Found:
        self._topics = []
        return self.found(must_exist=False)

    def resolve(self, bound: Bound, found: Found, *, is_start: bool) -> dict[TopicPartition, int]:
        """The offsets for the user's starting or ending option."""
        if bound.everywhere is not None:
            return dict(found.earliest if bound.everywhere == EARLIEST else found.latest)
        if bound.offsets is not None:
            check_all_are_named(
                bound.option,
                bound.offsets,
                found.latest,
                "Add an offset for each; -1 is the latest and -2 the earliest.",
            )
            return {
                partition: self._within(bound.option, partition, offset, found)
                for partition, offset in bound.offsets.items()
            }
        if bound.timestamps_ms is not None:
            check_all_are_named(bound.option, bound.timestamps_ms, found.latest, "Add a timestamp for each.")
            times = dict(bound.timestamps_ms)
        else:
            assert bound.timestamp_ms is not None
            times = dict.fromkeys(found.latest, bound.timestamp_ms)
        return self._at(bound.option, times, found, is_start)

    def _within(self, option: str, partition: TopicPartition, offset: int, found: Found) -> int:
        earliest, latest = found.earliest[partition], found.latest[partition]
        if offset in (EARLIEST, LATEST):
            return earliest if offset == EARLIEST else latest
        if not earliest <= offset <= latest:
            text = f"{option} has {offset} for {partition}, which has offsets {earliest} to {latest}"
            if self.options.fail_on_data_loss:
                hint = "-2 is the earliest and -1 the latest offset; with failOnDataLoss=false the nearest is used."
                raise OttlaError(text, hint)
            log.warning("%s: using the nearest", text)
        return min(max(offset, earliest), latest)

    def _at(
        self, option: str, times: Mapping[TopicPartition, int], found: Found, is_start: bool
    ) -> dict[TopicPartition, int]:
        answers = self.admin.list_offsets(times, isolation_level=self.options.isolation_level) if times else {}
        resolved = {}
        for partition, at in times.items():
            answer = answers[partition]
            if answer is not None:
                # Records produced since the other lookup belong to the next batch.
                resolved[partition] = min(answer.offset, found.latest[partition])
            elif is_start and not self.options.latest_if_no_match:
                raise OttlaError(
                    f"{option}: {partition} has no record at {at} or later",
                    "Choose an earlier time, or set startingOffsetsByTimestampStrategy to latest.",
                )
            else:
                resolved[partition] = found.latest[partition]
        return resolved


def check_all_are_named(option: str, named: Mapping[TopicPartition, int], there: Offsets, hint: str) -> None:
    unknown = sorted(set(named) - set(there))
    if unknown:
        raise _missing_partitions(option, unknown, there)
    missing = sorted(set(there) - set(named))
    if missing:
        raise OttlaError(f"{option} has no entry for {', '.join(map(str, missing[:5]))}", hint)


def _missing_partitions(option: str, missing: list[TopicPartition], there: Iterable[TopicPartition]) -> OttlaError:
    topic = missing[0].topic
    count = sum(1 for partition in there if partition.topic == topic)
    hint = f"{topic} has partitions 0 to {count - 1}." if count else f"{topic} is not subscribed to."
    return OttlaError(f"{option} has {', '.join(map(str, missing[:5]))}, which does not exist", hint)
