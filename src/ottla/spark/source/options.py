"""The options of `format("ottla")` as a source, with the names of Spark's Kafka source: values, conflicts. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ottla.checks import unsigned_from_text, whole_number
from ottla.client.core.foreign_settings import security_name
from ottla.client.core.model import EARLIEST, LATEST
from ottla.client.core.settings import ConsumerConfig, build
from ottla.config import settings_of
from ottla.errors import ConfigError, nearest
from ottla.spark.option_values import boolean, choice, duration_ms, integer, integer_or
from ottla.spark.source.offsets import Split
from ottla.types import INT32_MAX, INT64_MAX, TopicPartition

BOOTSTRAP = "kafka.bootstrap.servers"
PREFIX = "kafka."
DEFAULT_GROUP_ID_PREFIX = "ottla-source"
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000
DEFAULT_POLL_TIMEOUT_MS = 120_000
DEFAULT_MIN_RECORDS_PER_PARTITION = 2_000
"""The minimum number of offsets of a task, if there are enough. A task costs as much as a few thousand rows."""

OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "minRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
)
"""Every option except kafka.*, as they are written in the documentation. Case does not matter."""

_BY_LOWER = {name.lower(): name for name in OPTIONS}

REFUSED = {
    "auto.offset.reset": (
        "the query keeps its position in its checkpoint",
        "Set startingOffsets to earliest or latest.",
    ),
    "key.deserializer": ("keys are binary", "Deserialize them with DataFrame functions, for example CAST."),
    "value.deserializer": ("values are binary", "Deserialize them with DataFrame functions, for example from_json."),
    "enable.auto.commit": (
        "offsets are committed when Spark has finished a batch, and only for display",
        "Remove it; kafka.group.id or groupIdPrefix names the group.",
    ),
    "auto.commit.interval.ms": ("offsets are committed after every batch", "Remove it."),
    "interceptor.classes": ("they are Java classes", "Remove it."),
    "max.poll.records": ("records are read in columns, batch by batch", "Remove it."),
    "group.instance.id": ("the source is not a member of a consumer group", "Remove it."),
    "partition.assignment.strategy": ("Spark assigns the partitions", "Remove it."),
}
"""Consumer settings that cannot be set on a Spark source: the reason and the fix."""


@dataclass(frozen=True)
class Subscription:
    """Which topics or partitions are read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern:
            return f"topics that match {self.pattern}"
        return ", ".join(self.topics or map(str, self.partitions))

    @property
    def label(self) -> str:
        """A short name for a group id."""
        if self.topics:
            word = self.topics[0]
        elif self.partitions:
            word = self.partitions[0].topic
        else:
            word = re.sub(r"[^a-zA-Z0-9_-]+", ".", self.pattern).strip(".")
        return word[:100]


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends. `offsets` may hold EARLIEST and LATEST; times are in milliseconds since 1970."""

    option: str
    everywhere: int | None = None
    """EARLIEST or LATEST, for every partition."""
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] | None = None

    def has(self, special: int) -> bool:
        """Whether EARLIEST (or LATEST) is used for any partition."""
        return self.everywhere == special or special in (self.offsets or {}).values()


@dataclass(frozen=True)
class SourceOptions:
    """The user's options, checked. A plain value: Spark pickles it between processes."""

    subscription: Subscription
    client_settings: Mapping[str, str] = field(repr=False)
    """The settings of our consumers on the executors, under Kafka's names."""
    starting: Bound | None = None
    """None by default: earliest for a batch, latest for a stream."""
    ending: Bound | None = None
    latest_if_no_match: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    group_id: str | None = None
    group_id_prefix: str = DEFAULT_GROUP_ID_PREFIX
    poll_timeout_ms: int = DEFAULT_POLL_TIMEOUT_MS
    offset_retries: int = 3
    offset_retry_interval_ms: int = 10
    metadata_cache_ms: int = -1

    @property
    def bootstrap(self) -> str:
        return self.client_settings["bootstrap.servers"]

    @property
    def isolation_level(self) -> str:
        return self.client_settings["isolation.level"]

    @property
    def split(self) -> Split:
        """How new batches are split into tasks. Without options, the number of tasks follows from the batch's size."""
        if self.min_partitions is not None or self.min_records_per_partition is not None:
            return self.old_split
        return replace(self.old_split, min_records=DEFAULT_MIN_RECORDS_PER_PARTITION)

    @property
    def old_split(self) -> Split:
        """How to split a batch whose end offset does not contain it, from versions without a default."""
        return Split(self.min_partitions, self.max_records_per_partition, self.min_records_per_partition)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Reads the options of `spark.read` or `spark.readStream`; raises ConfigError if one is wrong."""
        given = {name.lower(): value for name, value in options.items()}
        _check_names(given)
        known = {_BY_LOWER[name]: value for name, value in given.items() if name in _BY_LOWER}
        client_settings, group_id = _client_settings(given)
        subscription = _subscription(known)
        starting = _bound(known, "starting", subscription)
        ending = _bound(known, "ending", subscription)
        _check_order(starting, ending)
        positive: Callable[[str], int | None] = lambda name: integer(known, name, at_least=1)  # noqa: E731
        parsed = cls(
            subscription=subscription,
            client_settings=client_settings,
            starting=starting,
            ending=ending,
            latest_if_no_match=choice(known, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
            max_offsets_per_trigger=positive("maxOffsetsPerTrigger"),
            min_offsets_per_trigger=positive("minOffsetsPerTrigger"),
            max_trigger_delay_ms=duration_ms(known, "maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
            min_partitions=integer(known, "minPartitions", at_least=1, at_most=INT32_MAX),
            max_records_per_partition=positive("maxRecordsPerPartition"),
            min_records_per_partition=positive("minRecordsPerPartition"),
            fail_on_data_loss=boolean(known, "failOnDataLoss", True),
            include_headers=boolean(known, "includeHeaders", False),
            group_id=group_id,
            group_id_prefix=_prefix(known),
            poll_timeout_ms=positive("kafkaConsumer.pollTimeoutMs") or DEFAULT_POLL_TIMEOUT_MS,
            offset_retries=integer_or(known, "fetchOffset.numRetries", 3, at_least=0),
            offset_retry_interval_ms=integer_or(known, "fetchOffset.retryIntervalMs", 10, at_least=0),
            metadata_cache_ms=_metadata_cache_ms(known),
        )
        low, high = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
        if low is not None and high is not None and low > high:
            raise ConfigError(
                f"minOffsetsPerTrigger ({low}) is larger than maxOffsetsPerTrigger ({high})",
                "Swap them, or remove one.",
            )
        if parsed.min_partitions is not None and parsed.min_records_per_partition is not None:
            raise ConfigError(
                "minPartitions and minRecordsPerPartition cannot be combined",
                "One increases the number of tasks, the other decreases it: remove one.",
            )
        return parsed

    def check_batch(self) -> None:
        """Rejects bounds that a batch query cannot have."""
        if self.starting is not None and self.starting.has(LATEST):
            raise ConfigError(
                f"{self.starting.option} cannot be latest in a batch query: there would be nothing to read",
                "Use earliest (or -2), offsets or a timestamp.",
            )
        if self.ending is not None and self.ending.has(EARLIEST):
            raise ConfigError(
                f"{self.ending.option} cannot be earliest in a batch query: there would be nothing to read",
                "Use latest (or -1), offsets or a timestamp.",
            )

    def check_stream(self) -> None:
        """Rejects an end, which a streaming query cannot have."""
        if self.ending is not None:
            raise ConfigError(
                f"{self.ending.option} is not for streaming queries, which have no end",
                "Remove it, or use spark.read. trigger(availableNow=True) reads the available records and stops.",
            )


def _check_names(given: Mapping[str, str]) -> None:
    if given.get("path"):
        raise ConfigError(
            f"load() takes no path with format ottla, but got {given['path']!r}",
            f"Set the topics: .option('subscribe', {given['path']!r}).load()",
        )
    for name in given:
        if name in _BY_LOWER or name.startswith(PREFIX) or name == "path":
            continue
        candidates = [*_BY_LOWER, BOOTSTRAP, *(PREFIX + setting for setting in settings_of(ConsumerConfig))]
        similar = PREFIX + name if PREFIX + name in candidates else nearest(name, candidates)
        hint = (
            f"Did you mean {_BY_LOWER.get(similar, similar)}?" if similar else f"The options are {', '.join(OPTIONS)}."
        )
        raise ConfigError(f"unknown option {name} of the source ottla", hint)


def _client_settings(given: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """The settings of our clients, and the group id, which is only for display: no client joins the group."""
    chosen = {security_name(name.removeprefix(PREFIX)): given[name] for name in given if name.startswith(PREFIX)}
    if "bootstrap.servers" not in chosen:
        raise ConfigError(
            f"option {BOOTSTRAP} is missing", f"Set it to the address of a broker: {BOOTSTRAP}=host:port."
        )
    for name, (reason, hint) in REFUSED.items():
        if name in chosen:
            raise ConfigError(f"option {PREFIX}{name} is not for the source: {reason}", hint)
    group_id = chosen.pop("group.id", None)
    if group_id is not None and not group_id.strip():
        raise ConfigError("option kafka.group.id is blank", "Set a group id, or remove it to get a generated one.")
    chosen.setdefault("isolation.level", "read_committed")
    known = settings_of(ConsumerConfig)
    for name in chosen:
        if name not in known:
            similar = nearest(name, known)
            raise ConfigError(
                f"unknown option {PREFIX}{name}: the client has no setting {name}",
                f"Did you mean {PREFIX}{similar}?" if similar else "Remove it.",
            )
    try:
        build(ConsumerConfig, chosen, {})
    except ConfigError as error:
        raise ConfigError(f"in the options kafka.*: {error.message}", error.hint) from None
    return chosen, group_id


def _subscription(known: Mapping[str, str]) -> Subscription:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in known]
    if len(chosen) != 1:
        cause = f"{' and '.join(chosen)} cannot be combined" if chosen else "there is no topic to read"
        raise ConfigError(cause, "Set exactly one of subscribe, subscribePattern and assign.")
    (name,) = chosen
    text = known[name].strip()
    if name == "assign":
        return Subscription(partitions=_assigned(text))
    if name == "subscribePattern":
        if not text:
            raise ConfigError("subscribePattern is empty", "Use a regular expression, for example orders-.*")
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(
                f"subscribePattern {text!r} is not a regular expression: {error}", "Use one as in orders-.*"
            ) from None
        return Subscription(pattern=text)
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ConfigError("subscribe is empty", "Set one or more topics, separated by commas.")
    return Subscription(topics=topics)


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for topic, numbers in _json_object("assign", text, '{"orders": [0, 1]}').items():
        if not isinstance(numbers, list) or not all(
            whole_number(number) is not None and number >= 0 for number in numbers
        ):
            raise ConfigError(
                f"assign: the partitions of {topic} are {json.dumps(numbers)}",
                'Use a list of numbers of 0 or more, as in {"orders": [0, 1]}.',
            )
        found.extend(TopicPartition(topic, number) for number in numbers)
    if not found:
        raise ConfigError("assign has no partition", 'Add one or more, as in {"orders": [0, 1]}.')
    return tuple(sorted(set(found)))


def _bound(known: Mapping[str, str], side: str, subscription: Subscription) -> Bound | None:
    """The bound that the three options of one side set.

    As in Spark's source, one timestamp for all partitions overrides timestamps for each, and those override offsets.
    """
    timestamp, by_timestamp, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if timestamp in known:
        at = integer(known, timestamp, at_least=0, hint="Use milliseconds since 1970.")
        return Bound(timestamp, timestamp_ms=at)
    if by_timestamp in known:
        times = _per_partition(by_timestamp, known[by_timestamp], subscription)
        for partition, at in times.items():
            if at < 0:
                raise ConfigError(f"{by_timestamp}: {at} for {partition} is negative", "Use milliseconds since 1970.")
        return Bound(by_timestamp, timestamps_ms=times)
    if offsets not in known:
        return None
    text = known[offsets].strip()
    if text.lower() in ("earliest", "latest"):
        return Bound(offsets, everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    found = _per_partition(offsets, text, subscription)
    for partition, offset in found.items():
        if offset < EARLIEST:
            raise ConfigError(
                f"{offsets}: {offset} for {partition} is not an offset",
                "Use 0 or more, -2 for the earliest or -1 for the latest.",
            )
    return Bound(offsets, offsets=found)


def _per_partition(option: str, text: str, subscription: Subscription) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    example = '{"orders": {"0": 23, "1": -2}}'
    for topic, entries in _json_object(option, text, example).items():
        if not isinstance(entries, dict):
            raise ConfigError(
                f"{option}: {topic} has {json.dumps(entries)}", f"Use one number for each partition: {example}."
            )
        for number, value in entries.items():
            partition = unsigned_from_text(number)
            if partition is None or whole_number(value) is None or abs(value) > INT64_MAX:
                raise ConfigError(
                    f"{option}: {topic} has {json.dumps({number: value})}",
                    f"Partitions and offsets are whole numbers: {example}.",
                )
            found[TopicPartition(topic, partition)] = value
    unsubscribed = sorted({p.topic for p in found} - set(subscription.topics)) if subscription.topics else []
    if unsubscribed:
        raise ConfigError(
            f"{option} has {', '.join(unsubscribed)}, which subscribe does not have",
            f"Subscribed topics: {subscription}. Add the topic to subscribe, or remove it here.",
        )
    return found


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        words = "" if option == "assign" or "Timestamp" in option else "earliest, latest or "
        raise ConfigError(f"{option} is {text!r}", f"Use {words}JSON, as in {example}.")
    return found


def _check_order(starting: Bound | None, ending: Bound | None) -> None:
    """Rejects an end before the beginning, if that is known without asking a broker."""
    if starting is None or ending is None:
        return
    if starting.timestamp_ms is not None and ending.timestamp_ms is not None:
        if starting.timestamp_ms > ending.timestamp_ms:
            raise ConfigError(
                f"startingTimestamp {starting.timestamp_ms} is after endingTimestamp {ending.timestamp_ms}",
                "Choose an end after the beginning.",
            )
        return
    for firsts, lasts in ((starting.offsets, ending.offsets), (starting.timestamps_ms, ending.timestamps_ms)):
        for partition, first in (firsts or {}).items():
            last = (lasts or {}).get(partition, LATEST)
            if 0 <= last < first:
                raise ConfigError(
                    f"{starting.option} has {first} for {partition}, after {last} in {ending.option}",
                    "Choose an end after the beginning.",
                )


def _prefix(known: Mapping[str, str]) -> str:
    prefix = known.get("groupIdPrefix", DEFAULT_GROUP_ID_PREFIX).strip()
    if not prefix:
        raise ConfigError("groupIdPrefix is blank", f"Remove it to use the default, {DEFAULT_GROUP_ID_PREFIX}.")
    return prefix


def _metadata_cache_ms(known: Mapping[str, str]) -> int:
    name = "partition.metadata.cache.ttl.ms"
    found = integer(known, name, at_least=-1, hint="Use milliseconds, or -1 to look them up for every batch.")
    if found == 0:
        raise ConfigError(
            f"{name} is 0", "Use a positive number of milliseconds, or -1 to look them up for every batch."
        )
    return -1 if found is None else found
