"""Other Kafka clients behind one small interface, so that one script runs with each of them.

A script uses these calls; each client executes them its own way, with its own versions of the protocol.
Outcomes are plain values and Kafka's published error names, so that clients and brokers can be compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode
from tests.support.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S
"""How long any one step of a script may take before it counts as failed."""

MAX_REQUEST_BYTES = 1_048_576
"""What clients are allowed to send in one request unless a script says otherwise: Kafka's own default."""


class Message(NamedTuple):
    """What a script sends."""

    value: bytes | None = b""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class Received(NamedTuple):
    """What a script reads back."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Found(NamedTuple):
    """One answer of ListOffsets. Clients that do not show the timestamp give -1."""

    offset: int
    timestamp_ms: int = -1


class ClientError(Exception):
    """A step failed; `name` is Kafka's published name of the error, or the client's own for a local one."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(f"{name}: {detail}" if detail else name)
        self.name = name


def error_name(code: int, fallback: str) -> str:
    """Kafka's name for a code; clients number their own local errors below -1."""
    try:
        return ErrorCode(code).name if code != -1 else fallback
    except ValueError:
        return fallback


class ForeignClient:
    """One client library. Every call opens what it needs and closes it again: scripts share no state."""

    name = ""
    offset_specs: frozenset[str] = frozenset({"earliest", "latest", "timestamp"})
    """What it can ask of ListOffsets: earliest, latest, timestamp, max_timestamp."""

    def unavailable(self) -> str | None:
        """None when it can run here, else the reason."""
        raise NotImplementedError

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int | None = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> list[int | str]:
        """For each message its offset, or the name of the error it met (-1: sent without asking)."""
        raise NotImplementedError

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, start: int = 0) -> list[Received]:
        """Assigned, not subscribed: `count` records from `start` on. A start out of range is an error."""
        raise NotImplementedError

    def create_topic(
        self, bootstrap: str, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        """`ok` or the name of the error."""
        raise NotImplementedError

    def delete_topic(self, bootstrap: str, topic: str) -> str:
        raise NotImplementedError

    def create_partitions(self, bootstrap: str, topic: str, count: int) -> str:
        raise NotImplementedError

    def partition_count(self, bootstrap: str, topic: str) -> int | str:
        """From the metadata, or the name of the error that the topic carries there."""
        raise NotImplementedError

    def topics(self, bootstrap: str) -> set[str]:
        raise NotImplementedError

    def describe_config(self, bootstrap: str, topic: str) -> dict[str, tuple[str | None, bool]]:
        """name -> (value, whether it is a default)."""
        raise NotImplementedError

    def alter_config(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> str:
        raise NotImplementedError

    def delete_records(self, bootstrap: str, topic: str, before: int, *, partition: int = 0) -> int:
        """The low watermark afterwards."""
        raise NotImplementedError

    def list_offsets(
        self, bootstrap: str, topic: str, specs: Iterable[str | int], *, partition: int = 0
    ) -> dict[str | int, Found]:
        """`earliest`, `latest`, `max_timestamp`, or a timestamp in milliseconds; not found is offset -1."""
        raise NotImplementedError

    def close(self) -> None:
        """Stops what outlives a call, such as a co-process."""


def foreign_clients() -> list[ForeignClient]:
    """All of them, three protocol generations and the Java client; ask each whether it can run here."""
    from tests.support.clients.aiokafka import AioKafka
    from tests.support.clients.confluent import Confluent
    from tests.support.clients.java import JavaClient
    from tests.support.clients.kafka_python import KafkaPython

    return [Confluent(), KafkaPython(), AioKafka(), JavaClient()]
