"""Dispatch: frames to handlers, errors to responses, and invalid frames that close the connection."""

import asyncio
import logging
import struct
from typing import Any

import pytest

from ottla.broker import dispatch
from ottla.broker.dispatch import SERVED, Dispatcher, advertised, handler_for
from ottla.broker.handler_support.error_responses import error_response
from ottla.errors import ErrorCode, KafkaError
from ottla.net.server.server import Disconnect
from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.schema import Message, field


class Client:
    """Stands in for a connection. Dispatch uses only its names."""

    client_host = "/127.0.0.1"
    listener = "PLAINTEXT"


class World:
    """A dispatcher whose handlers the test writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dispatcher = Dispatcher(services=None)  # type: ignore[arg-type]
        self.handlers: dict[int, Any] = dict.fromkeys(SERVED, _unexpected)
        monkeypatch.setattr(dispatch, "_handlers", self.handlers)

    def frame(self, request: Any, version: int, correlation_id: int = 7, client_id: str = "c") -> bytes:
        return encode_request(request.api_key, version, correlation_id, client_id, request)[4:]

    def sends(self, request: Any, version: int, correlation_id: int = 7) -> Any:
        """The decoded response, immediate or awaited."""
        answer = self.dispatcher(self.frame(request, version, correlation_id), Client())  # type: ignore[arg-type]
        if answer is not None and not isinstance(answer, bytes | bytearray):
            answer = asyncio.run(_result(answer))
        if answer is None:
            return None
        assert isinstance(answer, bytes | bytearray)
        assert struct.unpack_from(">i", answer)[0] == len(answer) - 4
        correlated, response = decode_response(request.api_key, version, answer[4:])
        assert correlated == correlation_id
        return response


def _unexpected(request: Any, context: Any) -> Any:
    raise AssertionError(f"{request} was not to be handled")


async def _result(awaitable: Any) -> Any:
    return await awaitable


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


# --- requests and responses ---------------------------------------------------------------------------------


def test_a_handler_gets_its_request_and_context(world: World) -> None:
    seen: dict[str, Any] = {}

    def metadata(request: MetadataRequest, context: Any) -> MetadataResponse:
        seen.update(version=context.api_version, client=context.client_id, host=context.client_host)
        seen.update(listener=context.listener, topics=[topic.name for topic in request.topics or []])
        return MetadataResponse(cluster_id="abc")

    world.handlers[ApiKey.METADATA] = metadata
    response = world.sends(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="orders")]), 9)
    assert response.cluster_id == "abc"
    assert seen == {
        "version": 9,
        "client": "c",
        "host": "/127.0.0.1",
        "listener": "PLAINTEXT",
        "topics": ["orders"],
    }


def test_no_response_stays_no_response(world: World) -> None:
    world.handlers[ApiKey.PRODUCE] = lambda request, context: None
    assert world.sends(ProduceRequest(acks=0), 9) is None


def test_a_response_may_come_later(world: World) -> None:
    async def metadata(request: Any, context: Any) -> MetadataResponse:
        await asyncio.sleep(0)
        return MetadataResponse(cluster_id="late")

    world.handlers[ApiKey.METADATA] = metadata
    assert world.sends(MetadataRequest(topics=[]), 9).cluster_id == "late"


def test_a_started_change_completes_even_if_its_client_disconnects(world: World) -> None:
    """A topic must not be half created because its client disconnected."""
    steps: list[str] = []

    async def metadata(request: Any, context: Any) -> MetadataResponse:
        steps.append("begun")
        await asyncio.sleep(0.01)
        steps.append("finished")
        return MetadataResponse()

    async def story() -> None:
        late: Any = world.dispatcher(world.frame(MetadataRequest(topics=[]), 9), Client())  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(late)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        late.close()  # as the server does for a lost connection
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.05)

    world.handlers[ApiKey.METADATA] = metadata
    asyncio.run(story())
    assert steps == ["begun", "finished"]


def test_a_request_that_was_not_started_is_dropped_silently(world: World, recwarn: pytest.WarningsRecorder) -> None:
    async def metadata(request: Any, context: Any) -> MetadataResponse:
        raise AssertionError("never begun")

    world.handlers[ApiKey.METADATA] = metadata
    late: Any = world.dispatcher(world.frame(MetadataRequest(topics=[]), 9), Client())  # type: ignore[arg-type]
    late.close()
    del late
    assert not list(recwarn)


def test_requests_are_counted_by_api_and_version(world: World) -> None:
    world.handlers[ApiKey.METADATA] = lambda request, context: MetadataResponse()
    for version in (9, 9, 12):
        world.sends(MetadataRequest(topics=[]), version)
    assert [(r.name, r.version, r.requests) for r in world.dispatcher.routes.values()] == [
        ("Metadata", 9, 2),
        ("Metadata", 12, 1),
    ]


def test_latency_is_measured_only_when_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.dispatcher = Dispatcher(services=None, measure_latency=True)  # type: ignore[arg-type]

    async def later(request: Any, context: Any) -> MetadataResponse:
        return MetadataResponse()

    for handler in (later, lambda request, context: MetadataResponse()):
        world.handlers[ApiKey.METADATA] = handler
        world.dispatcher.routes.clear()
        world.sends(MetadataRequest(topics=[]), 9)
        (route,) = world.dispatcher.routes.values()
        assert sum(route.buckets) == 1
        assert 0 < route.seconds < 5


# --- versions ---------------------------------------------------------------------------------------------


def test_every_served_api_has_a_handler_and_only_known_versions() -> None:
    for key, served in SERVED.items():
        assert callable(handler_for(key)), served.name
        assert served.versions[0] >= API[key].min_version
        assert served.versions[-1] <= API[key].max_version


def test_produce_is_advertised_from_version_zero_for_librdkafka() -> None:
    """KAFKA-18659: without it librdkafka sends everything uncompressed."""
    ranges = {key: (first, last) for key, first, last in advertised()}
    assert ranges[ApiKey.PRODUCE] == (0, 13)
    assert set(ranges) == set(SERVED)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (struct.pack(">hhih", 9999, 0, 1, -1), "unknown API key 9999"),
        (struct.pack(">hhih", -1, 0, 1, -1), "unknown API key -1"),
        (struct.pack(">hhih", 0, 2, 1, -1), "version 2"),
        (struct.pack(">hhih", 0, 99, 1, -1), "version 99"),
        (struct.pack(">hhih", 1, -1, 1, -1), "version -1"),
        (struct.pack(">hhih", ApiKey.VOTE, 0, 1, -1) + b"\0", "Vote is not supported"),
        (b"", "request header"),
        (b"\0\0\0", "request header"),
        (struct.pack(">hhih", 3, 0, 1, 30_000) + b"short", "request header"),
        (struct.pack(">hhih", 3, 0, 1, 2) + b"\xff\xfe", "request header"),
        (struct.pack(">hhih", 3, 4, 1, -1) + b"\x7f\xff\xff\xff", "MetadataRequest v4"),
        (struct.pack(">hhih", 0, 9, 1, -1) + b"\0\x02\x00", "ProduceRequest v9"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "API key"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "API key"),
    ],
)
def test_invalid_bytes_close_the_connection_with_a_reason(world: World, body: bytes, reason: str) -> None:
    """Spec: R8. Hostile bytes."""
    with pytest.raises(Disconnect, match=reason):
        world.dispatcher(body, Client())  # type: ignore[arg-type]
    assert world.dispatcher.malformed == 1


@pytest.mark.parametrize("version", [6, 77, 32767, -1])
def test_api_versions_in_an_unknown_version_is_answered_in_version_zero(world: World, version: int) -> None:
    """Spec: R4. The body is ignored: it may be anything."""
    frame = struct.pack(">hhih", 18, version, 42, 4) + b"javaanything at all\xff"
    answer = world.dispatcher(frame, Client())  # type: ignore[arg-type]
    assert isinstance(answer, bytes)
    correlation_id, response = decode_response(18, 0, answer[4:])
    assert correlation_id == 42
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    ranges = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
    assert ranges[18] == (0, 5)


# --- errors -----------------------------------------------------------------------------------------------


def failing(error: Exception) -> Any:
    def handler(request: Any, context: Any) -> Any:
        raise error

    return handler


def failing_later(error: Exception) -> Any:
    async def handler(request: Any, context: Any) -> Any:
        raise error

    return handler


@pytest.mark.parametrize("when", [failing, failing_later])
def test_a_kafka_error_becomes_the_responses_error_code(world: World, when: Any) -> None:
    world.handlers[ApiKey.INIT_PRODUCER_ID] = when(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "loading"))
    response = world.sends(InitProducerIdRequest(transactional_id=None), 4)
    assert isinstance(response, InitProducerIdResponse)
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert response.producer_id == -1
    assert [route.errors for route in world.dispatcher.routes.values()] == [1]


@pytest.mark.parametrize("when", [failing, failing_later])
def test_an_unexpected_error_is_logged_once_and_answered(
    world: World, when: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world.handlers[ApiKey.INIT_PRODUCER_ID] = when(ZeroDivisionError("oops"))
    response = world.sends(InitProducerIdRequest(transactional_id=None), 4)
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert "InitProducerId v4 from /127.0.0.1" in record.message


def test_unexpected_errors_cannot_fill_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.handlers[ApiKey.INIT_PRODUCER_ID] = failing(ZeroDivisionError("oops"))
    for _ in range(30):
        assert world.sends(InitProducerIdRequest(transactional_id=None), 4).error_code != 0
    assert len([r for r in caplog.records if r.exc_info]) == 20


def test_a_failed_produce_with_acks_0_closes_the_connection(world: World) -> None:
    world.handlers[ApiKey.PRODUCE] = failing(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
    with pytest.raises(Disconnect, match="acks=0"):
        world.sends(ProduceRequest(acks=0), 9)


def test_a_failed_request_has_an_error_for_each_partition(world: World) -> None:
    failed = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "disk gone")

    def answered(key: ApiKey, request: Any, version: int) -> Any:
        world.handlers[key] = failing(failed)
        return world.sends(request, version)

    topic = ProduceRequest.TopicProduceData(
        name="t", partition_data=[ProduceRequest.PartitionProduceData(index=i, records=None) for i in (0, 5)]
    )
    response = answered(ApiKey.PRODUCE, ProduceRequest(acks=1, topic_data=[topic]), 9)
    (produced,) = response.responses
    assert produced.name == "t"
    assert [(p.index, p.error_code, p.error_message) for p in produced.partition_responses] == [
        (0, 56, "disk gone"),
        (5, 56, "disk gone"),
    ]

    topic_id = bytes(range(16))
    by_id = ProduceRequest.TopicProduceData(
        topic_id=topic_id, partition_data=[ProduceRequest.PartitionProduceData(index=1, records=None)]
    )
    response = answered(ApiKey.PRODUCE, ProduceRequest(acks=1, topic_data=[by_id]), 13)
    assert response.responses[0].topic_id == topic_id

    request = ListOffsetsRequest(
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="t", partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=3)]
            )
        ]
    )
    response = answered(ApiKey.LIST_OFFSETS, request, 7)
    assert [(t.name, p.partition_index, p.error_code) for t in response.topics for p in t.partitions] == [("t", 3, 56)]

    epochs = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic="t", partitions=[OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=2)]
            )
        ]
    )
    response = answered(ApiKey.OFFSET_FOR_LEADER_EPOCH, epochs, 4)
    assert [(t.topic, p.partition, p.error_code) for t in response.topics for p in t.partitions] == [("t", 2, 56)]

    fetch = FetchRequest(
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[FetchRequest.FetchPartition(partition=4)])]
    )
    response = answered(ApiKey.FETCH, fetch, 4)
    assert [(t.topic, p.partition_index, p.error_code) for t in response.responses for p in t.partitions] == [
        ("t", 4, 56)
    ]
    assert answered(ApiKey.FETCH, fetch, 12).error_code == 56

    created = answered(
        ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="n")]), 7
    )
    assert [(t.name, t.error_code, t.error_message) for t in created.topics] == [("n", 56, "disk gone")]

    for version, deletion in (
        (1, DeleteTopicsRequest(topic_names=["a", "b"])),
        (6, DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in ("a", "b")])),
    ):
        deleted = answered(ApiKey.DELETE_TOPICS, deletion, version)
        assert [(t.name, t.error_code) for t in deleted.responses] == [("a", 56), ("b", 56)]

    added = AddPartitionsToTxnRequest(
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[6])]
    )
    response = error_response(AddPartitionsToTxnResponse, added, 3, ErrorCode.KAFKA_STORAGE_ERROR, "")
    (topic_result,) = response.results_by_topic_v3_and_below
    assert [(p.partition_index, p.partition_error_code) for p in topic_result.results_by_partition] == [(6, 56)]

    asked = DescribeConfigsRequest(
        resources=[DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name="t")]
    )
    described = answered(ApiKey.DESCRIBE_CONFIGS, asked, 4)
    assert [(r.resource_type, r.resource_name, r.error_code) for r in described.results] == [(2, "t", 56)]


@pytest.mark.parametrize("key", sorted(SERVED), ids=lambda key: ApiKey(key).name)
def test_every_api_can_report_a_failure_of_the_whole_request(key: int) -> None:
    """In every version it is served in, the response of a failed request can be written and read."""
    for version in SERVED[key].versions:
        request = API[key].request()
        response = error_response(API[key].response, request, version, ErrorCode.UNKNOWN_SERVER_ERROR, "why")
        assert response is not None
        assert API[key].response.decode(response.encode(version), version) is not None


def test_failed_metadata_has_an_error_for_the_whole_and_for_each_topic() -> None:
    """As in Kafka: a client that looks only at topics must not take the failure for an empty cluster."""
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in ("t", None)])
    for version in (12, 13):
        response = error_response(MetadataResponse, request, version, ErrorCode.INVALID_REQUEST, "")
        response = MetadataResponse.decode(response.encode(version), version)
        assert response.error_code == (ErrorCode.INVALID_REQUEST if version == 13 else ErrorCode.NONE)
        assert [(topic.name, topic.error_code) for topic in response.topics] == [("t", 42), ("", 42)]


def test_a_response_without_an_error_field_is_none() -> None:
    class Silent(Message, versions=range(1)):
        throttle_time_ms: int = field("int32")

    assert error_response(Silent, ApiVersionsRequest(), 0, ErrorCode.UNKNOWN_SERVER_ERROR, "") is None
