"""The internals of a client that the stores need: every access to them is here."""
# ruff: noqa: SLF001 - the reason for this module

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.client.blocking.producer import Producer
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.consumer.positions import Positions
from ottla.client.core.network import Network
from ottla.client.group.consumer_coordinator import ConsumerCoordinator
from ottla.client.producer.producer import AsyncProducer
from ottla.types import TopicPartition

T = TypeVar("T")


def async_consumer(consumer: Any) -> AsyncConsumer:
    """The AsyncConsumer itself, or the one behind a blocking Consumer."""
    inner: AsyncConsumer = getattr(consumer, "_async", consumer)
    return inner


def async_producer(producer: Producer) -> AsyncProducer:
    return producer._async


def run(consumer: Any, coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop of a blocking Consumer, and waits for it."""
    result: T = consumer._call(coroutine)
    return result


def network_of(client: AsyncConsumer | AsyncProducer) -> Network:
    return client._network


def positions_of(consumer: AsyncConsumer) -> Positions:
    return consumer._positions


def find_group(consumer: AsyncConsumer) -> ConsumerCoordinator | None:
    return consumer._group


def consumed(consumer: AsyncConsumer) -> dict[TopicPartition, int]:
    """The offset after the last record that was returned to the user, by partition."""
    return consumer._reader.consumed()


def close_after(consumer: AsyncConsumer, is_done: Callable[[], bool]) -> None:
    """Makes close() wait until `is_done()`."""
    consumer._unfinished.append(is_done)
