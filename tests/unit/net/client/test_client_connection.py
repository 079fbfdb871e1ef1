"""The client side of a connection: negotiating versions, pipelining, and every kind of failure of a broker."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.net.client.connection import Connection
from ottla.net.client.peers import Peers
from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import decode_request_header, encode_response
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.primitives import ProtocolError
from ottla.testing.sim_loop import SimLoop
from ottla.testing.sim_network import SimNetwork
from ottla.types import Endpoint
from tests.support.seeds import each_seed

HERE = Endpoint("broker", 9092)


class Broker(asyncio.Protocol):
    """A broker that runs a callback of the test: `on_request(broker, api_key, version, correlation_id)`."""

    made = 0

    def __init__(self, on_request: Callable[..., None]) -> None:
        self.on_request = on_request
        self.received = b""
        self.asked: list[tuple[int, int]] = []

    def connection_made(self, transport: Any) -> None:
        Broker.made += 1
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "big")
            if len(self.received) < 4 + size:
                return
            frame, self.received = self.received[4 : 4 + size], self.received[4 + size :]
            header = decode_request_header(frame)
            self.asked.append((header.api_key, header.api_version))
            self.on_request(self, header.api_key, header.api_version, header.correlation_id)

    def answer(self, api_key: int, version: int, correlation_id: int, message: Any) -> None:
        self.transport.write(encode_response(api_key, version, correlation_id, message))

    def answer_versions(self, version: int, correlation_id: int, **limits: int) -> None:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)
            for key, api in API.items()
            if key in (ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.PRODUCE)
        ]
        for entry in keys:
            if entry.api_key == ApiKey.METADATA and "metadata" in limits:
                entry.max_version = limits["metadata"]
        self.answer(ApiKey.API_VERSIONS, version, correlation_id, ApiVersionsResponse(api_keys=keys))


def friendly(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
    if api_key == ApiKey.API_VERSIONS:
        broker.answer_versions(version, correlation_id)
    else:
        broker.answer(api_key, version, correlation_id, MetadataResponse(cluster_id=f"answer {correlation_id}"))


def simulate(
    story: Callable[[], Coroutine[Any, Any, None]], on_request: Callable[..., None] | None = friendly, seed: int = 1
) -> None:
    """Runs a story in a simulation with one broker, or none if `on_request` is None."""
    loop = SimLoop(seed)
    SimNetwork(loop)

    async def main() -> None:
        if on_request is not None:
            await loop.create_server(lambda: Broker(on_request), HERE.host, HERE.port)
        await story()

    loop.run(main())


def metadata(version: int) -> MetadataRequest:
    return MetadataRequest(topics=None)


def fails_with(code: ErrorCode, *words: str) -> Any:
    return pytest.raises(KafkaError, match=f"{code.name}: .*" + ".*".join(words))


def test_the_highest_version_that_both_sides_support_is_used() -> None:
    async def story() -> None:
        connection = await Connection.open(HERE)
        assert connection.version_for(ApiKey.METADATA) == 8
        assert connection.version_for(ApiKey.METADATA, max_version=4) == 4
        with fails_with(ErrorCode.UNSUPPORTED_VERSION, "does not serve DescribeCluster"):
            connection.version_for(ApiKey.DESCRIBE_CLUSTER)
        answer = await connection.send(ApiKey.METADATA, metadata)
        assert answer.version == 8

    def broker(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == ApiKey.API_VERSIONS:
            broker.answer_versions(version, correlation_id, metadata=8)
        else:
            friendly(broker, api_key, version, correlation_id)

    simulate(story, broker)


def test_api_versions_is_retried_in_a_version_that_an_older_broker_supports() -> None:
    """KIP-511: a broker answers an unknown version in version 0, with error 35 and the versions it supports."""
    asked: list[int] = []

    def old(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        asked.append(version)
        if version > 2:
            entry = ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=2)
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[entry])
            broker.answer(ApiKey.API_VERSIONS, 0, correlation_id, refusal)
        else:
            broker.answer_versions(version, correlation_id)

    async def story() -> None:
        connection = await Connection.open(HERE)
        assert ApiKey.METADATA in connection.api_versions

    simulate(story, old)
    assert asked == [API[ApiKey.API_VERSIONS].max_version, 2]


def test_api_versions_is_retried_in_version_0_if_the_broker_lists_no_versions() -> None:
    asked: list[int] = []

    def ancient(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        asked.append(version)
        if version:
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
            broker.answer(ApiKey.API_VERSIONS, 0, correlation_id, refusal)
        else:
            broker.answer_versions(0, correlation_id)

    async def story() -> None:
        await Connection.open(HERE)

    simulate(story, ancient)
    assert asked == [API[ApiKey.API_VERSIONS].max_version, 0]


def test_a_rejected_api_versions_request_in_an_unknown_layout_is_retried_in_version_0() -> None:
    """librdkafka's mock cluster writes its list of versions in a compact form here."""
    asked: list[int] = []

    def odd(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        asked.append(version)
        if version:
            body = correlation_id.to_bytes(4, "big") + b"\x00\x23\x01\x00\x12\x00\x00\x00\x03\x00\x00"
            broker.transport.write(len(body).to_bytes(4, "big") + body)
        else:
            broker.answer_versions(0, correlation_id)

    async def story() -> None:
        await Connection.open(HERE)

    simulate(story, odd)
    assert asked == [API[ApiKey.API_VERSIONS].max_version, 0]


@each_seed(5)
def test_many_requests_in_flight_each_get_their_own_response(seed: int) -> None:
    async def story() -> None:
        connection = await Connection.open(HERE)
        futures = [connection.send(ApiKey.METADATA, metadata) for _ in range(50)]
        assert connection.in_flight == 50
        answers = [(await future).message.cluster_id for future in futures]
        assert answers == [f"answer {i}" for i in range(1, 51)]

    simulate(story, seed=seed)


def test_responses_larger_than_the_buffer_are_received_completely() -> None:
    name = "x" * 30_000

    def verbose(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == ApiKey.API_VERSIONS:
            broker.answer_versions(version, correlation_id)
            return
        topics = [MetadataResponse.MetadataResponseTopic(name=name) for _ in range(10 if correlation_id % 2 else 1)]
        broker.answer(api_key, version, correlation_id, MetadataResponse(topics=topics))

    async def story() -> None:
        connection = await Connection.open(HERE)
        futures = [connection.send(ApiKey.METADATA, metadata) for _ in range(6)]
        sizes = [len((await future).message.topics) for future in futures]
        assert sizes == [10, 1, 10, 1, 10, 1]

    for seed in range(5):
        simulate(story, verbose, seed)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("piece", [100_000, 1 << 20, 3 << 20])
def test_large_responses_arrive_in_pieces_of_any_size_and_small_ones_after_them(
    new_loop: Callable[[], asyncio.AbstractEventLoop], piece: int
) -> None:
    """On real sockets: SO_RCVLOWAT is raised for a large response, but not above the bytes that are still to come."""
    counts = [170, 0, 3, 140, 1]

    def on_request(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == ApiKey.API_VERSIONS:
            broker.answer_versions(version, correlation_id)
            return
        topic = MetadataResponse.MetadataResponseTopic(name="x" * 30_000)
        answer = MetadataResponse(topics=[topic] * counts[correlation_id - 1])
        send_pieces(broker, encode_response(api_key, version, correlation_id, answer))

    def send_pieces(broker: Broker, data: bytes) -> None:
        broker.transport.write(data[:piece])
        if len(data) > piece:
            asyncio.get_running_loop().call_later(0.001, send_pieces, broker, data[piece:])

    async def story() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Broker(on_request), "127.0.0.1", 0)
        connection = await Connection.open(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]))
        for count in counts:
            answer = await connection.send(ApiKey.METADATA, metadata, timeout_ms=60_000)
            assert [topic.name for topic in answer.message.topics] == ["x" * 30_000] * count
        connection.close()
        server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


def test_a_refused_connection_is_an_error_with_address_and_reason() -> None:
    async def story() -> None:
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "cannot connect to broker:9092: connection refused"):
            await Connection.open(HERE)

    simulate(story, None)


def test_connecting_to_a_silent_broker_times_out() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "broker:9092 did not answer within 3000 ms"):
            await Connection.open(HERE, connect_timeout_ms=3_000)
        assert 3 <= loop.time() < 3.1

    simulate(story, lambda *_: None)


def test_a_peer_that_speaks_another_protocol_is_recognised() -> None:
    async def story() -> None:
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "does not speak the Kafka protocol"):
            await Connection.open(HERE)

    simulate(story, lambda broker, *_: broker.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


def test_a_malformed_response_is_an_error_and_closes_the_connection() -> None:
    def garbage(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == ApiKey.API_VERSIONS:
            broker.answer_versions(version, correlation_id)
        else:
            broker.transport.write(b"\0\0\0\x08" + correlation_id.to_bytes(4, "big") + b"\xff\xff\xff\xff")

    async def story() -> None:
        connection = await Connection.open(HERE)
        futures = [connection.send(ApiKey.METADATA, metadata) for _ in range(2)]
        with fails_with(ErrorCode.UNKNOWN_SERVER_ERROR, "answered Metadata", "unreadable"):
            await futures[0]
        with pytest.raises(KafkaError):
            await futures[1]
        assert connection.is_closed

    simulate(story, garbage)


def test_a_response_with_a_wrong_correlation_id_is_rejected() -> None:
    def confused(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == ApiKey.API_VERSIONS:
            broker.answer_versions(version, correlation_id)
        else:
            broker.answer(api_key, version, correlation_id + 1, MetadataResponse())

    async def story() -> None:
        connection = await Connection.open(HERE)
        with fails_with(ErrorCode.UNKNOWN_SERVER_ERROR, "correlation id 2 instead of 1"):
            await connection.send(ApiKey.METADATA, metadata)

    simulate(story, confused)


def test_a_request_that_times_out_closes_the_connection() -> None:
    def silent(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == ApiKey.API_VERSIONS:
            broker.answer_versions(version, correlation_id)

    async def story() -> None:
        connection = await Connection.open(HERE)
        slow = connection.send(ApiKey.METADATA, metadata, timeout_ms=500)
        behind = connection.send(ApiKey.METADATA, metadata)
        with fails_with(ErrorCode.REQUEST_TIMED_OUT, "Metadata got no response from broker:9092 within 500 ms"):
            await slow
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "so the connection was closed"):
            await behind
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "so the connection was closed"):
            connection.send(ApiKey.METADATA, metadata)

    simulate(story, silent)


def test_requests_in_flight_fail_when_the_broker_disconnects() -> None:
    def rude(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == ApiKey.API_VERSIONS:
            broker.answer_versions(version, correlation_id)
        else:
            broker.transport.close()

    async def story() -> None:
        closed: list[Connection] = []
        connection = await Connection.open(HERE, on_closed=closed.append)
        futures = [connection.send(ApiKey.METADATA, metadata) for _ in range(3)]
        for future in futures:
            with fails_with(ErrorCode.NETWORK_EXCEPTION, "lost the connection to broker:9092: the broker closed it"):
                await future
        assert closed == [connection]

    simulate(story, rude)


def test_a_request_without_response_is_done_when_it_is_written() -> None:
    async def story() -> None:
        connection = await Connection.open(HERE)
        future = connection.send(ApiKey.METADATA, metadata, expects_response=False)
        assert future.done()
        assert future.result().message is None
        assert connection.in_flight == 0

    simulate(story, lambda b, k, v, c: b.answer_versions(v, c) if k == ApiKey.API_VERSIONS else None)


# Peers


def peers(**options: Any) -> Peers:
    made = Peers(client_id="test", **options)
    made.set_nodes({0: HERE})
    return made


def test_requests_made_before_the_connection_is_established_are_sent_in_order() -> None:
    async def story() -> None:
        nodes = peers()
        futures = [nodes.send(0, ApiKey.METADATA, metadata) for _ in range(5)]
        assert nodes.load(0) == 5
        assert not nodes.is_connected(0)
        assert [(await f).message.cluster_id for f in futures] == [f"answer {i}" for i in range(1, 6)]
        assert nodes.is_connected(0)
        await nodes.close()

    simulate(story)


def test_each_lane_has_its_own_connection() -> None:
    """So that a long poll does not delay other requests."""

    def parks_the_first(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == ApiKey.API_VERSIONS or broker.asked.count((ApiKey.METADATA, version)) > 1 or Broker.made > 1:
            friendly(broker, api_key, version, correlation_id)

    async def story() -> None:
        Broker.made = 0
        nodes = peers()
        parked = nodes.send(0, ApiKey.METADATA, metadata, lane="fetch")
        await asyncio.sleep(1)
        await nodes.send(0, ApiKey.METADATA, metadata)
        assert Broker.made == 2
        assert not parked.done()
        await nodes.close()
        with pytest.raises(KafkaError):
            await parked

    simulate(story, parks_the_first)


def test_reconnecting_backs_off_and_succeeds_once_the_broker_returns() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        nodes = peers(reconnect_backoff=Backoff(100, 1_000))
        moments = []
        for _ in range(8):
            with fails_with(ErrorCode.NETWORK_EXCEPTION, "connection refused"):
                await nodes.send(0, ApiKey.METADATA, metadata)
            moments.append(loop.time())
        waits = [after - before for before, after in itertools.pairwise(moments)]
        for wait, expected in zip(waits, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
            assert expected * 0.8 <= wait <= expected * 1.2 + 0.01
        assert nodes.load(0) is None, "not a node to choose"
        await loop.create_server(lambda: Broker(friendly), HERE.host, HERE.port)
        await nodes.send(0, ApiKey.METADATA, metadata)
        assert nodes.load(0) == 0
        await nodes.close()

    simulate(story, None)


def test_when_a_node_is_connected_to_again_is_known() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        nodes = peers(reconnect_backoff=Backoff(100, 1_000))
        assert nodes.reconnect_at(0) == 0, "nothing has failed"
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "connection refused"):
            await nodes.send(0, ApiKey.METADATA, metadata)
        assert loop.time() + 0.07 <= nodes.reconnect_at(0) <= loop.time() + 0.13
        await loop.create_server(lambda: Broker(friendly), HERE.host, HERE.port)
        again = nodes.reconnect_at(0)
        await nodes.send(0, ApiKey.METADATA, metadata)
        assert loop.time() >= again
        assert nodes.reconnect_at(0) == 0
        await nodes.close()

    simulate(story, None)


def test_an_outage_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.net")

    async def story() -> None:
        nodes = peers()
        for lane in ("", "fetch", "", "fetch"):
            with pytest.raises(KafkaError):
                await nodes.send(0, ApiKey.METADATA, metadata, lane=lane)
        await asyncio.get_running_loop().create_server(lambda: Broker(friendly), HERE.host, HERE.port)
        for lane in ("", "fetch"):
            await nodes.send(0, ApiKey.METADATA, metadata, lane=lane)
        await nodes.close()

    simulate(story, None)
    assert caplog.messages == [
        "cannot connect to broker:9092: connection refused; retrying",
        "connected to broker:9092 again",
    ]


def test_the_next_request_reconnects_after_a_lost_connection() -> None:
    async def story() -> None:
        nodes = peers()
        await nodes.send(0, ApiKey.METADATA, metadata)
        asyncio.get_running_loop().network.cut_all()  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        assert not nodes.is_connected(0)
        await nodes.send(0, ApiKey.METADATA, metadata)
        assert nodes.is_connected(0)
        await nodes.close()

    simulate(story)


def test_a_node_that_moved_is_reached_at_its_new_address() -> None:
    async def story() -> None:
        nodes = peers()
        await nodes.send(0, ApiKey.METADATA, metadata)
        nodes.set_nodes({0: Endpoint("elsewhere", 1)})
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "cannot connect to elsewhere:1"):
            await nodes.send(0, ApiKey.METADATA, metadata)
        nodes.set_nodes({})
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "node 0 is unknown"):
            await nodes.send(0, ApiKey.METADATA, metadata)
        await nodes.close()

    simulate(story)


def test_after_close_nothing_is_sent_and_pending_requests_fail() -> None:
    async def story() -> None:
        nodes = peers()
        waiting = nodes.send(0, ApiKey.METADATA, metadata)
        await nodes.close()
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "closed"):
            await waiting
        with fails_with(ErrorCode.NETWORK_EXCEPTION, "the client is closed"):
            await nodes.send(0, ApiKey.METADATA, metadata)

    simulate(story)


def test_a_message_that_cannot_be_encoded_fails_its_caller_only() -> None:
    async def story() -> None:
        nodes = peers()
        await nodes.send(0, ApiKey.METADATA, metadata)
        wrong: Any = "nonsense"
        with pytest.raises(ProtocolError, match="MetadataRequest v13: topics"):
            await nodes.send(0, ApiKey.METADATA, lambda version: MetadataRequest(topics=wrong))
        await nodes.send(0, ApiKey.METADATA, metadata)
        await nodes.close()

    simulate(story)
