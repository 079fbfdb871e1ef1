"""The options of `writeStream.format("ottla")` and `write.format("ottla")`: names, defaults, what is refused. Pure."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.client.core.settings import AdminConfig, ConsumerConfig, ProducerConfig, build
from ottla.config import settings_of
from ottla.errors import ConfigError, OttlaError
from ottla.spark.sink.errors import SinkError

KAFKA = "kafka."
DELIVERIES = ("exactly-once", "at-least-once", "at-most-once")
TWO_PHASE = ("auto", "required", "off")
LOST_PARTS = ("fail", "replace")
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
"""The sink's name becomes part of a topic's name, so it takes the letters that topics take."""
NUMBER = re.compile(r"[0-9]{1,18}")
LONGEST_QUERY_ID = 200
"""It is part of every entry of the ledger."""
DEFAULTS = {"batch.size": "262144"}
"""Where the user says nothing: a task has all its rows at hand, so batches may be large."""
LONGEST_TIMEOUT_MS = 900_000
"""Kafka's default for transaction.max.timeout.ms: what a transaction may ask for where two-phase commit is off."""

NAMES = {
    "topic": "the topic of every row; without it, the column topic",
    "includeHeaders": "whether the column headers is written (true)",
    "includeTimestamp": "whether the column timestamp is written (false: records get the time they are sent at)",
    "delivery": "exactly-once (default), at-least-once or at-most-once",
    "sinkName": "the name of this sink's ledger and transactions; without it, made from the query's id",
    "jobId": "of a batch write with a sinkName: the same id again finishes that write, and never repeats it",
    "batchId": "inside foreachBatch, with a sinkName: the batch's number; a batch that comes again is not repeated",
    "queryId": "of a write with a batchId: whose batch it is; without it, the query that calls foreachBatch",
    "twoPhaseCommit": "auto (default: where the brokers allow it), required or off",
    "lostParts": "fail (default) or replace: what to do where a decided part is lost and comes out different again",
    "checkpointLocation": "Spark's own; where it is a local directory, it tells one batch of a number from another",
    "path": "Spark's own; taken no notice of",
    "queryName": "Spark's own; taken no notice of",
}
"""Every option besides kafka.*, with what it says."""
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
"""Options of the source, for those who put one on the wrong side."""
REFUSED = {
    "key.serializer": "Keys are bytes or text: cast the column in the query.",
    "value.serializer": "Values are bytes or text: cast the column in the query.",
    "key.deserializer": "It is a consumer's setting.",
    "value.deserializer": "It is a consumer's setting.",
    "transactional.id": "The sink names its transactions itself; set sinkName.",
    "enable.idempotence": "It is always on.",
    "transaction.two.phase.commit.enable": "Set twoPhaseCommit to auto, required or off.",
    "interceptor.classes": "They are Java classes.",
}

IDEMPOTENT = "Leave it out: the sink's producer is always idempotent."


@dataclass(frozen=True)
class SinkOptions:
    """What the user wants of the sink."""

    kafka: Mapping[str, str] = field(default_factory=dict)
    """Settings of the producer under Kafka's names."""
    topic: str | None = None
    include_headers: bool = True
    include_timestamp: bool = False
    delivery: str = "exactly-once"
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
        """From the options that Spark hands over, whose names it has made small."""
        known = {name.lower(): name for name in NAMES}
        written: dict[str, str] = {}
        kafka: dict[str, str] = {}
        for name, value in options.items():
            small = name.lower()
            if small.startswith(KAFKA):
                kafka[small.removeprefix(KAFKA)] = value
            elif small in known:
                written[known[small]] = value
            else:
                raise unknown_option(name)
        if "bootstrap.servers" not in kafka:
            raise SinkError("Option kafka.bootstrap.servers is missing", "Give it host:port of one or more brokers.")
        topic = written.get("topic")
        if topic is not None and not topic.strip():
            raise SinkError("Option topic is empty", "Name a topic, or leave the option out and give a column topic.")
        parsed = cls(
            kafka=kafka,
            topic=topic,
            include_headers=_flag(written, "includeHeaders", True),
            include_timestamp=_flag(written, "includeTimestamp", False),
            delivery=_choice(written, "delivery", DELIVERIES),
            sink_name=written.get("sinkName"),
            job_id=written.get("jobId"),
            batch_id=_number(written, "batchId"),
            query_id=written.get("queryId"),
            two_phase_commit=_choice(written, "twoPhaseCommit", TWO_PHASE),
            lost_parts=_choice(written, "lostParts", LOST_PARTS),
            checkpoint_location=written.get("checkpointLocation"),
        )
        parsed._check(streaming)
        return parsed

    def _check(self, streaming: bool) -> None:
        if self.sink_name is not None and not LEGAL_NAME.fullmatch(self.sink_name):
            raise SinkError(
                f"Option sinkName is {self.sink_name!r}", "Use up to 200 letters, digits, dots, dashes and underscores."
            )
        if self.job_id is not None and (streaming or self.sink_name is None or not self.job_id):
            raise SinkError(
                "Option jobId names one batch write among those of a sink",
                "A stream has batch ids of its own: leave it out."
                if streaming
                else "Set sinkName too."
                if self.sink_name is None
                else "Give it a name.",
            )
        self._check_batch(streaming)
        if self.delivery == "at-most-once" and not streaming:
            raise SinkError(
                "delivery=at-most-once is for streams: a batch write has no batch ids to remember",
                "Use exactly-once or at-least-once.",
            )
        for name, why in REFUSED.items():
            if name in self.kafka:
                raise SinkError(f"Option kafka.{name} cannot be set", why)
        if self.delivery != "exactly-once" and "transaction.timeout.ms" in self.kafka:
            raise SinkError(
                f"Option kafka.transaction.timeout.ms has no meaning with delivery={self.delivery}", "Leave it out."
            )
        try:
            # As the tasks will make it: what turns idempotence off shall not come to light there.
            build(ProducerConfig, {**self.kafka, "enable.idempotence": "true"}, {})
        except ConfigError as error:
            hint = IDEMPOTENT if "enable.idempotence" in error.hint else error.hint
            raise SinkError(f"Option kafka.{self._named_in(error.message)}: {error.message}", hint) from None

    def _named_in(self, message: str) -> str:
        """The setting that a message speaks of, and speaks of first."""
        named = [name for name in self.kafka if name in message]
        return min(named, key=lambda name: (message.index(name), -len(name)), default="*")

    def _check_batch(self, streaming: bool) -> None:
        """What belongs together inside foreachBatch."""
        if self.batch_id is None and self.query_id is None:
            return
        if streaming:
            raise SinkError(
                "Options batchId and queryId are for writes inside foreachBatch",
                "A stream has ids of its own: leave them out.",
            )
        if self.batch_id is None:
            raise SinkError("Option queryId says whose batch it is, and there is no batchId", "Set batchId too.")
        if self.sink_name is None:
            raise SinkError(
                "Option batchId says which batch of a sink this is, and there is no sinkName",
                "Set sinkName too: each write inside foreachBatch has one of its own.",
            )
        if self.job_id is not None:
            raise SinkError(
                "Option batchId is of a write inside foreachBatch, and jobId of one that stands by itself",
                "Leave one of them out.",
            )
        if self.query_id is not None and not 0 < len(self.query_id) <= LONGEST_QUERY_ID:
            raise SinkError(
                f"Option queryId has {len(self.query_id)} characters",
                f"Give it 1 to {LONGEST_QUERY_ID}, the same for as long as the checkpoint is kept.",
            )
        if self.delivery != "exactly-once":
            raise SinkError(
                f"Option batchId has no meaning with delivery={self.delivery}, which does not remember batches here",
                "Leave it out, or use exactly-once.",
            )

    @property
    def bootstrap(self) -> str:
        return self.kafka["bootstrap.servers"]

    @property
    def timeout_ms(self) -> int:
        """How long a transaction may take where two-phase commit is off."""
        return int(self.kafka.get("transaction.timeout.ms", LONGEST_TIMEOUT_MS))

    @property
    def has_timeout(self) -> bool:
        """Whether the user chose it."""
        return "transaction.timeout.ms" in self.kafka

    def producer_settings(self) -> dict[str, str]:
        """What a task's producer is made with, but for its transactions."""
        settings = {**DEFAULTS, **self.kafka}
        settings.pop("transaction.timeout.ms", None)
        return settings

    def client_settings(self, config_class: type[AdminConfig] | type[ConsumerConfig]) -> dict[str, Any]:
        """What of kafka.* an admin or a consumer understands too: addresses, timeouts, security."""
        known = settings_of(config_class)
        return {name: value for name, value in self.kafka.items() if name in known}


def default_sink_name(query: str) -> str:
    """The name of a sink that the user gave none: stable for a checkpoint, as the query's id is."""
    return f"ottla-sink-{query}"


def unknown_option(name: str) -> OttlaError:
    """The error for an option nobody knows, with the nearest one that somebody does."""
    small = name.lower()
    for theirs, ours in NOT_FOR_SINKS.items():
        if small == theirs.lower():
            return SinkError(
                f"Option {theirs} belongs to the source", f"A sink takes {ours}." if ours else "Leave it out."
            )
    known = {each.lower(): each for each in NAMES}
    known |= {f"{KAFKA}{each}": f"{KAFKA}{each}" for each in settings_of(ProducerConfig)}
    if f"{KAFKA}{small}" in known:
        return SinkError(f"Unknown option {name}", f"Did you mean {KAFKA}{small}?")
    close = difflib.get_close_matches(small, list(known), n=1)
    return SinkError(f"Unknown option {name}", f"Did you mean {known[close[0]]}?" if close else "")


def _flag(written: Mapping[str, str], name: str, default: bool) -> bool:
    text = written.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise SinkError(f"Option {name} is {written[name]!r}", "Write true or false.")
    return text == "true"


def _number(written: Mapping[str, str], name: str) -> int | None:
    text = written.get(name)
    if text is None:
        return None
    if not NUMBER.fullmatch(text.strip()):
        raise SinkError(f"Option {name} is {text!r}", "Give it the number that foreachBatch hands to its function.")
    return int(text)


def _choice(written: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = written.get(name, choices[0]).strip().lower()
    if text not in choices:
        close = difflib.get_close_matches(text, choices, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Write one of: {', '.join(choices)}."
        raise SinkError(f"Option {name} is {written[name]!r}", hint)
    return text
