"""The options of `writeStream.format("ottla")` and `write.format("ottla")`: names, defaults, checks. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.client.core.foreign_settings import security_name
from ottla.client.core.guarantees import Guarantee
from ottla.client.core.settings import AdminConfig, ConsumerConfig, ProducerConfig, build
from ottla.config import settings_of
from ottla.errors import ConfigError, nearest
from ottla.spark.option_values import batch_id, boolean, choice

KAFKA = "kafka."
TWO_PHASE = ("auto", "required", "off")
LOST_PARTS = ("fail", "replace")
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
"""The sink's name becomes part of a topic's name, so it has the same legal characters."""
LONGEST_QUERY_ID = 200
"""It is part of every ledger entry."""
DEFAULTS = {"batch.size": "262144"}
"""Defaults that differ from the producer's: a task sends all its rows at once, so batches can be large."""
LONGEST_TIMEOUT_MS = 900_000
"""Kafka's default for transaction.max.timeout.ms: the longest transaction timeout without two-phase commit."""

NAMES = {
    "topic": "the topic of every row; without it, the topic is in the column topic",
    "includeHeaders": "whether the column headers is written (default true)",
    "includeTimestamp": "whether the column timestamp is written (default false: records get the time of sending)",
    "delivery": "exactly-once (default), at-least-once or at-most-once",
    "sinkName": "the name of this sink's ledger and transactions; by default derived from the query's id",
    "jobId": "for a batch write with a sinkName: a write with the same id finishes the earlier one and repeats nothing",
    "batchId": "inside foreachBatch, with a sinkName: the batch id; a repeated batch is not written again",
    "queryId": "for a write with a batchId: the query of the batch; by default the query that calls foreachBatch",
    "twoPhaseCommit": "auto (default: if the brokers allow it), required or off",
    "lostParts": "fail (default) or replace: what to do if a decided part is lost and the retry has other rows",
    "checkpointLocation": "set by Spark; a local directory also distinguishes two batches with the same number",
    "path": "set by Spark; ignored",
    "queryName": "set by Spark; ignored",
}
"""Every option besides kafka.*, with its meaning."""
NOT_FOR_SINKS = {
    "subscribe": "topic",
    "subscribePattern": "topic",
    "assign": "topic",
    "startingOffsets": "",
    "endingOffsets": "",
    "startingTimestamp": "",
    "endingTimestamp": "",
    "failOnDataLoss": "",
    "maxOffsetsPerTrigger": "",
    "minPartitions": "",
}
"""Options of the source, with the sink's counterpart, for a better error."""
REFUSED = {
    "key.serializer": "Keys are bytes or text: cast the column in the query.",
    "value.serializer": "Values are bytes or text: cast the column in the query.",
    "key.deserializer": "It is a consumer setting: remove it.",
    "value.deserializer": "It is a consumer setting: remove it.",
    "transactional.id": "The sink chooses its transactional ids from sinkName: set sinkName instead.",
    "enable.idempotence": "It is always on: remove it.",
    "transaction.two.phase.commit.enable": "Set twoPhaseCommit to auto, required or off.",
    "interceptor.classes": "They are Java classes: remove it.",
}

IDEMPOTENT = "Remove it: the sink's producer is always idempotent."


@dataclass(frozen=True)
class SinkOptions:
    """The user's options, checked."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the producer under Kafka's names."""
    topic: str | None = None
    include_headers: bool = True
    include_timestamp: bool = False
    delivery: Guarantee = Guarantee.EXACTLY_ONCE
    sink_name: str | None = None
    job_id: str | None = None
    batch_id: int | None = None
    """Of a write inside foreachBatch: it follows the rules of a stream."""
    query_id: str | None = None
    two_phase_commit: str = "auto"
    lost_parts: str = "fail"
    checkpoint_location: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], streaming: bool) -> "SinkOptions":
        """From Spark's options, whose names are in lower case."""
        known = {name.lower(): name for name in NAMES}
        written: dict[str, str] = {}
        kafka: dict[str, str] = {}
        for name, value in options.items():
            small = name.lower()
            if small.startswith(KAFKA):
                kafka[security_name(small.removeprefix(KAFKA))] = value
            elif small in known:
                written[known[small]] = value
            else:
                raise unknown_option(name)
        if "bootstrap.servers" not in kafka:
            raise ConfigError(
                "option kafka.bootstrap.servers is missing", "Set it to host:port of one or more brokers."
            )
        topic = written.get("topic")
        if topic is not None and not topic.strip():
            raise ConfigError(
                "option topic is empty", "Set it to a topic, or remove the option and add a column topic."
            )
        parsed = cls(
            kafka=kafka,
            topic=topic,
            include_headers=boolean(written, "includeHeaders", True),
            include_timestamp=boolean(written, "includeTimestamp", False),
            delivery=choice(written, "delivery", tuple(Guarantee)),
            sink_name=written.get("sinkName"),
            job_id=written.get("jobId"),
            batch_id=batch_id(written, "batchId"),
            query_id=written.get("queryId"),
            two_phase_commit=choice(written, "twoPhaseCommit", TWO_PHASE),
            lost_parts=choice(written, "lostParts", LOST_PARTS),
            checkpoint_location=written.get("checkpointLocation"),
        )
        parsed._check(streaming)
        return parsed

    def _check(self, streaming: bool) -> None:
        if self.sink_name is not None and not LEGAL_NAME.fullmatch(self.sink_name):
            raise ConfigError(
                f"option sinkName is {self.sink_name!r}",
                "Use 1 to 200 characters: letters, digits, dots, dashes and underscores.",
            )
        if self.job_id is not None and (streaming or self.sink_name is None or not self.job_id):
            raise ConfigError(
                "option jobId is for batch writes with a sinkName",
                "A stream has its own batch ids: remove jobId."
                if streaming
                else "Set sinkName too."
                if self.sink_name is None
                else "Set jobId to a name that is not empty.",
            )
        self._check_batch(streaming)
        if self.delivery == Guarantee.AT_MOST_ONCE and not streaming:
            raise ConfigError(
                "delivery=at-most-once is for streams: a batch write has no batch ids to remember",
                "Use exactly-once or at-least-once.",
            )
        for name, why in REFUSED.items():
            if name in self.kafka:
                raise ConfigError(f"option kafka.{name} cannot be set", why)
        if self.delivery != Guarantee.EXACTLY_ONCE and "transaction.timeout.ms" in self.kafka:
            raise ConfigError(
                f"option kafka.transaction.timeout.ms has no effect with delivery={self.delivery}", "Remove it."
            )
        try:
            # As the tasks will create it: settings that turn idempotence off must be rejected here, not there.
            build(ProducerConfig, {**self.kafka, "enable.idempotence": "true"}, {})
        except ConfigError as error:
            hint = IDEMPOTENT if "enable.idempotence" in error.hint else error.hint
            raise ConfigError(f"option kafka.{self._named_in(error.message)}: {error.message}", hint) from None

    def _named_in(self, message: str) -> str:
        """The setting that a message mentions first."""
        named = [name for name in self.kafka if name in message]
        return min(named, key=lambda name: (message.index(name), -len(name)), default="*")

    def _check_batch(self, streaming: bool) -> None:
        """The options of a write inside foreachBatch."""
        if self.batch_id is None and self.query_id is None:
            return
        if streaming:
            raise ConfigError(
                "options batchId and queryId are for writes inside foreachBatch",
                "A stream has its own ids: remove them.",
            )
        if self.batch_id is None:
            raise ConfigError("option queryId needs a batchId", "Set batchId too.")
        if self.sink_name is None:
            raise ConfigError(
                "option batchId needs a sinkName",
                "Set sinkName too: each write inside foreachBatch needs its own.",
            )
        if self.job_id is not None:
            raise ConfigError(
                "options batchId and jobId cannot be combined: batchId is for writes inside foreachBatch",
                "Remove one of them.",
            )
        if self.query_id is not None and not 0 < len(self.query_id) <= LONGEST_QUERY_ID:
            raise ConfigError(
                f"option queryId has {len(self.query_id)} characters (allowed: 1 to {LONGEST_QUERY_ID})",
                "Choose a name that stays the same as long as the checkpoint is kept.",
            )
        if self.delivery != Guarantee.EXACTLY_ONCE:
            raise ConfigError(
                f"option batchId has no effect with delivery={self.delivery}, which does not remember batches here",
                "Remove it, or use exactly-once.",
            )

    @property
    def bootstrap(self) -> str:
        return self.kafka["bootstrap.servers"]

    @property
    def timeout_ms(self) -> int:
        """How long a transaction may take without two-phase commit."""
        return int(self.kafka.get("transaction.timeout.ms", LONGEST_TIMEOUT_MS))

    @property
    def has_timeout(self) -> bool:
        """Whether the user set transaction.timeout.ms."""
        return "transaction.timeout.ms" in self.kafka

    def producer_settings(self) -> dict[str, str]:
        """The settings of a task's producer, without those of transactions."""
        settings = {**DEFAULTS, **self.kafka}
        settings.pop("transaction.timeout.ms", None)
        return settings

    def client_settings(self, config_class: type[AdminConfig] | type[ConsumerConfig]) -> dict[str, Any]:
        """The settings in kafka.* that an admin or a consumer has too: addresses, timeouts, security."""
        known = settings_of(config_class)
        return {name: value for name, value in self.kafka.items() if name in known}


def default_sink_name(query: str) -> str:
    """The default name of a sink. Like the query's id, it stays the same as long as the checkpoint is kept."""
    return f"ottla-sink-{query}"


def unknown_option(name: str) -> ConfigError:
    """The error for an unknown option, with the most similar known one."""
    small = name.lower()
    for theirs, ours in NOT_FOR_SINKS.items():
        if small == theirs.lower():
            return ConfigError(
                f"option {theirs} belongs to the source", f"Use {ours} for a sink." if ours else "Remove it."
            )
    known = {each.lower(): each for each in NAMES}
    known |= {f"{KAFKA}{each}": f"{KAFKA}{each}" for each in settings_of(ProducerConfig)}
    if f"{KAFKA}{small}" in known:
        return ConfigError(f"unknown option {name}", f"Did you mean {KAFKA}{small}?")
    similar = nearest(small, known)
    hint = f"Did you mean {known[similar]}?" if similar else f"The options are {', '.join(NAMES)}."
    return ConfigError(f"unknown option {name}", hint)
