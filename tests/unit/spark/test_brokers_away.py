"""Unreachable brokers: the errors of the source and the sink are ones that a pipeline retries.

Spec: F4.
"""

import asyncio
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.pipeline.running.failures import Failure, explain
from ottla.spark.explaining import ExplainedError, explained
from ottla.spark.sink import clients as sink_clients
from ottla.spark.sink.clients import Clients
from ottla.spark.sink.ledger import Names
from ottla.spark.sink.options import SinkOptions
from ottla.types import TopicPartition

NOWHERE = "127.0.0.1:1"


def through_spark(error: BaseException) -> Failure:
    """What the supervisor gets after Spark has wrapped an error of a worker."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    return explain(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed "
        f"when Python streaming data source perform latestOffset: {name}: {error} SQLSTATE: 38000 SQLSTATE: XXKST\n"
        "=== Streaming Query ===\nIdentifier: shop [id = 1]"
    )


def raised_by_the_source(error: KafkaError | OttlaError) -> Failure:
    with pytest.raises(ExplainedError) as caught, explained("b:1"):
        raise error
    return through_spark(caught.value)


@pytest.mark.parametrize("code", ["REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE"])
def test_a_source_whose_brokers_do_not_answer_is_retried(code: str) -> None:
    hint = "Is a broker running at b:1, and can this machine reach it?"
    assert raised_by_the_source(KafkaError(ErrorCode[code], "30 s went by")) == Failure(
        f"no broker answered: 30 s went by. {hint}"
    )
    message = f"no broker answered at {NOWHERE} within 500 ms"
    assert raised_by_the_source(KafkaError(ErrorCode[code], message)) == Failure(f"{message}. {hint}"), (
        "the text is not repeated"
    )


def test_a_source_without_a_leader_is_retried_but_not_one_without_authorization() -> None:
    assert raised_by_the_source(KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)).retriable
    assert not raised_by_the_source(KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders")).retriable
    assert not raised_by_the_source(OttlaError("there is no topic ordes", "Did you mean orders?")).retriable


@pytest.fixture
def clients() -> Clients:
    return Clients(SinkOptions.parse({"kafka.bootstrap.servers": NOWHERE, "topic": "t"}, streaming=True))


@pytest.mark.parametrize(
    ("code", "retriable"),
    [
        ("REQUEST_TIMED_OUT", True),
        ("NOT_CONTROLLER", True),
        ("BROKER_NOT_AVAILABLE", True),
        ("POLICY_VIOLATION", False),
    ],
)
def test_a_sink_that_cannot_create_its_topic_is_retried_unless_it_is_not_authorized(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, code: str, retriable: bool
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise KafkaError(ErrorCode[code])

    monkeypatch.setattr(clients.admin, "create_topic", refuse)
    with pytest.raises(OttlaError) as caught:
        asyncio.run(clients._create_decisions(Names("shop")))  # noqa: SLF001
    failure = through_spark(caught.value)
    assert failure.retriable is retriable
    assert f"cannot be created: {code}" in failure.cause


def test_a_sink_that_cannot_read_its_decisions_is_retried(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        async def seek(self, *_: Any) -> None: ...

        async def position(self, _: Any) -> int:
            return 0

        async def poll(self, _: int) -> list[Any]:
            return []

    monkeypatch.setattr(sink_clients, "BROKER_TIMEOUT_MS", -1)
    with pytest.raises(OttlaError) as caught:
        asyncio.run(clients._replay(Silent(), TopicPartition("shop-decisions", 0), 0, 5))  # type: ignore[arg-type]  # noqa: SLF001
    failure = through_spark(caught.value)
    assert failure.retriable
    assert failure.cause.startswith("shop-decisions-0 could not be read to its end within")
