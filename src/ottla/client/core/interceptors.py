"""Interceptors: called for every record that is sent or returned, for tracing, auditing or adding headers.

As in Kafka (KIP-42), an interceptor that fails is logged and the record continues unchanged.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ottla.client.core.model import Bytes, CommittedOffset, HeadersLike, RecordMetadata, Records
from ottla.errors import ArgumentError, OttlaError
from ottla.types import TopicPartition

T = TypeVar("T")

log = logging.getLogger("ottla.client")


class ProducerRecord(NamedTuple):
    """The arguments of send(). An interceptor returns it, changed with `record._replace(headers=…)` or not."""

    topic: str
    value: Bytes
    key: Bytes
    partition: int | None
    timestamp: int | None
    headers: HeadersLike


class ProducerInterceptor:
    """Override what you need. Any thread may call it, so it should be quick and safe for several threads.

    >>> class Tracing(ProducerInterceptor):
    ...     def on_send(self, record):
    ...         return record._replace(headers=[*(record.headers or ()), ("trace", new_id())])
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Called by send() before the partition is chosen; returns the record to send. Not called by send_arrow()."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: OttlaError | None) -> None:
        """Called once the record is stored or has failed, or send() has rejected it."""


class ConsumerInterceptor:
    """Override what you need."""

    def on_consume(self, records: Records) -> Records:
        """Called with what poll() or the iteration is about to return; returns it, changed or not.

        Records that it leaves out count as consumed. Not called for Arrow batches.
        """
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Called on the client's own thread after offsets were committed to the group."""


def check_interceptors(given: Iterable[T], kind: type[T]) -> tuple[T, ...]:
    checked = tuple(given)
    for each in checked:
        if not isinstance(each, kind):
            raise ArgumentError(f"not a {kind.__name__}: {each!r}", f"Pass instances of subclasses of {kind.__name__}.")
    return checked


def intercept_send(interceptors: Sequence[ProducerInterceptor], record: ProducerRecord) -> ProducerRecord:
    for interceptor in interceptors:
        try:
            changed: Any = interceptor.on_send(record)
            if not isinstance(changed, ProducerRecord):
                raise TypeError(f"it returned {type(changed).__name__}, not the record")
            record = changed
        except Exception:
            log.exception("on_send() of %s failed; the record is sent unchanged", type(interceptor).__name__)
    return record


def acknowledge(interceptors: Sequence[ProducerInterceptor], delivery: Any) -> None:
    """For `delivery.add_done_callback`."""
    error = delivery.exception()
    metadata = delivery.result() if error is None else None
    notify_acknowledgement(interceptors, metadata, error)


def notify_acknowledgement(
    interceptors: Sequence[ProducerInterceptor], metadata: RecordMetadata | None, error: OttlaError | None
) -> None:
    for interceptor in interceptors:
        try:
            interceptor.on_acknowledgement(metadata, error)
        except Exception:
            log.exception("on_acknowledgement() of %s failed", type(interceptor).__name__)


def intercept_consume(interceptors: Sequence[ConsumerInterceptor], records: Records) -> Records:
    if not records:
        return records
    for interceptor in interceptors:
        try:
            changed: Any = interceptor.on_consume(records)
            if not isinstance(changed, Records):
                raise TypeError(f"it returned {type(changed).__name__}, not Records")
            records = changed
        except Exception:
            log.exception("on_consume() of %s failed; the records are returned unchanged", type(interceptor).__name__)
    return records


def notify_commit(
    interceptors: Sequence[ConsumerInterceptor], offsets: Mapping[TopicPartition, CommittedOffset]
) -> None:
    for interceptor in interceptors:
        try:
            interceptor.on_commit(offsets)
        except Exception:
            log.exception("on_commit() of %s failed", type(interceptor).__name__)
