"""Quotas as clients see them: pauses in responses, connections that are not read meanwhile. In simulated time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from ottla.broker.monitoring.metrics import Metrics
from ottla.broker.services import Context
from ottla.broker.throttling import is_exempt
from ottla.errors import ErrorCode, KafkaError
from ottla.net.client.connection import Connection
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch
from ottla.protocol.schema import Message
from ottla.security.resources import Operation
from ottla.testing import World
from ottla.types import Endpoint

BROKER = Endpoint("127.0.0.1", 9092)
WAY_MS = 20
"""A pause begins at the broker, a little before the client gets the response."""


class Heedless(Connection):
    """A client that does not pause when it should: the broker has to make it wait."""

    def _throttle(self, api_key: int, throttle_ms: int) -> None:
        pass


class Peer:
    """A client that speaks the protocol itself, and knows how long each answer took."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.took_ms = 0

    @classmethod
    async def connect(cls, client_id: str = "peer") -> "Peer":
        return cls(await Heedless.open(BROKER, client_id=client_id))

    async def ask(self, request: Message, version: int | None = None) -> Any:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        key = type(request).api_key
        answer = await self.connection.send(key, lambda _: request, max_version=version)
        self.took_ms = round((loop.time() - begun) * 1000)
        return answer.message


async def set_quota(entity: list[tuple[str, str | None]], name: str, value: float | None) -> None:
    peer = await Peer.connect("operator")
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[AlterClientQuotasRequest.EntityData(entity_type=t, entity_name=n) for t, n in entity],
                ops=[AlterClientQuotasRequest.OpData(key=name, value=value or 0.0, remove=value is None)],
            )
        ]
    )
    (result,) = (await peer.ask(request)).entries
    assert result.error_code == 0, result.error_message
    peer.connection.close()


def create(name: str, partitions: int = 1) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def produce(size: int, *, acks: int = 1) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(build_batch([(1, None, b"x" * size, [])])))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def fetch(offset: int, *, session: tuple[int, int] = (0, -1), replica_id: int = -1) -> FetchRequest:
    partition = FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[partition])] if session[1] <= 0 else []
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=topics,
        session_id=session[0],
        session_epoch=session[1],
        replica_id=replica_id,
    )


def fetched(response: Any) -> int:
    return sum(len(p.records or b"") for topic in response.responses for p in topic.partitions)


def run(story: Callable[[World], Awaitable[None]], **settings: str) -> World:
    world = World(1, **settings)
    world.run(story)
    return world


async def with_topic() -> Peer:
    peer = await Peer.connect()
    assert (await peer.ask(create("t"))).topics[0].error_code == 0
    return peer


def test_a_producer_above_its_quota_is_told_to_pause_and_its_next_request_waits() -> None:
    async def story(world: World) -> None:
        peer = await with_topic()
        await set_quota([("client-id", "peer")], "producer_byte_rate", 1000)
        first = await peer.ask(produce(9_000), 12)
        assert (first.throttle_time_ms, first.responses[0].partition_responses[0].error_code) == (0, 0)
        second = await peer.ask(produce(9_000), 12)
        # 18 kB and some headers at 1 kB/s, of which ten seconds' worth is free.
        assert 8_000 < second.throttle_time_ms < 9_000
        assert peer.took_ms < 100
        await peer.ask(MetadataRequest(topics=[]))
        assert peer.took_ms == pytest.approx(second.throttle_time_ms, abs=100)
        # Other client ids are not affected.
        other = await Peer.connect("other")
        assert (await other.ask(produce(90_000), 12)).throttle_time_ms == 0

    run(story)


def test_a_producer_that_wants_no_answer_is_muted_all_the_same() -> None:
    async def story(world: World) -> None:
        peer = await with_topic()
        await set_quota([("user", None)], "producer_byte_rate", 1000)
        peer.connection.send(
            ProduceRequest.api_key, lambda _: produce(15_000, acks=0), max_version=12, expects_response=False
        )
        await peer.ask(MetadataRequest(topics=[]))
        assert 5_000 < peer.took_ms < 6_000

    run(story)


def test_a_fetch_above_the_quota_is_answered_empty_and_complete_after_the_pause() -> None:
    async def story(world: World) -> None:
        peer = await with_topic()
        for _ in range(3):
            await peer.ask(produce(6_000), 12)
        await set_quota([("client-id", "peer")], "consumer_byte_rate", 1000)
        opened = await peer.ask(fetch(0, session=(0, 0)), 12)
        # Not more at once than fits into a window: the third batch would be above ten seconds' worth.
        assert 6_000 < fetched(opened) < 13_000
        assert opened.session_id
        throttled = await peer.ask(fetch(0, session=(opened.session_id, 1)), 12)
        assert throttled.throttle_time_ms > 0
        assert (fetched(throttled), throttled.session_id) == (0, opened.session_id)
        again = await peer.ask(fetch(0, session=(opened.session_id, 2)), 12)
        assert peer.took_ms >= throttled.throttle_time_ms - WAY_MS
        epoch, loop = 3, asyncio.get_running_loop()
        begun = loop.time()
        while not fetched(again):
            again = await peer.ask(fetch(0, session=(opened.session_id, epoch)), 12)
            epoch += 1
        assert fetched(again) == fetched(opened)
        # The first answer has left the window then.
        assert loop.time() - begun < 11

    run(story)


def test_followers_are_exempt() -> None:
    async def story(world: World) -> None:
        peer = await with_topic()
        await set_quota([("user", None)], "consumer_byte_rate", 10)
        await set_quota([("user", None)], "request_percentage", 0.00001)
        response = await peer.ask(fetch(0, replica_id=0), 12)
        assert response.throttle_time_ms == 0
        broker = await Connection.open(BROKER, client_id="broker-0")
        response = await Peer(broker).ask(MetadataRequest(topics=[]))
        assert response.throttle_time_ms == 0
        stranger = await Connection.open(BROKER, client_id="broker-17")
        assert (await Peer(stranger).ask(MetadataRequest(topics=[]))).throttle_time_ms == 1000

    run(story)


def test_time_of_the_event_loop_is_limited_too() -> None:
    async def story(world: World) -> None:
        peer = await with_topic()
        await set_quota([("client-id", "peer")], "request_percentage", 0.00001)
        assert (await peer.ask(MetadataRequest(topics=[]))).throttle_time_ms == 1000
        # A response of stage two counts as well, and a fetch is answered empty.
        assert (await peer.ask(create("u"))).throttle_time_ms == 1000
        assert peer.took_ms >= 1000 - WAY_MS
        throttled = await peer.ask(fetch(0), 12)
        assert (throttled.throttle_time_ms, throttled.responses) == (1000, [])

    run(story)


def test_with_an_authorizer_only_principals_with_cluster_action_count_as_brokers() -> None:
    class Nobody:
        """Allows everything but CLUSTER_ACTION."""

        def allows(self, principal: Any, host: str, operation: Operation, resource: Any, api_key: int) -> bool:
            return operation != Operation.CLUSTER_ACTION

    async def story(world: World) -> None:
        await set_quota([("user", None)], "request_percentage", 0.00001)
        assert world.broker is not None
        world.broker.services.authorizer = cast("Any", Nobody())
        pretender = await Connection.open(BROKER, client_id="broker-0")
        found = is_exempt(ApiKey.HEARTBEAT, None, context_of(world, pretender))
        assert not found
        world.broker.services.authorizer = None
        assert is_exempt(ApiKey.HEARTBEAT, None, context_of(world, pretender))

    run(story)


def test_a_client_id_with_thousands_of_digits_is_no_broker() -> None:
    async def story(world: World) -> None:
        pretender = await Connection.open(BROKER, client_id="x")
        for client_id in ("broker-" + "9" * 5000, "broker-", "broker--1", "broker-7", "broker-0 "):
            assert not is_exempt(ApiKey.HEARTBEAT, None, context_of(world, pretender, client_id))

    run(story)


def context_of(world: World, client: Connection, client_id: str = "broker-0") -> Context:
    assert world.broker is not None
    assert world.broker.server is not None
    (accepted,) = world.broker.server.connections
    return Context(world.broker.services, 0, client_id, accepted)


def test_metrics_count_pauses_and_connections() -> None:
    async def story(world: World) -> None:
        peer = await with_topic()
        await set_quota([("client-id", "peer")], "producer_byte_rate", 1000)
        await set_quota([("ip", None)], "connection_creation_rate", 1000)
        throttle_ms = (await peer.ask(produce(20_000), 12)).throttle_time_ms
        broker = world.broker
        assert broker is not None
        assert broker.server is not None
        text = Metrics(broker.dispatcher, broker.server, broker.services).page().body.decode()
        assert 'ottla_throttled_requests_total{quota="producer_byte_rate"} 1.0' in text
        assert f'ottla_throttle_seconds_total{{quota="producer_byte_rate"}} {throttle_ms / 1000}' in text
        assert "ottla_quota_meters 1.0" in text
        assert "ottla_connections_rate_refused_total 0.0" in text

    run(story)


def measures(world: World) -> bool:
    assert world.broker is not None
    found = {world.broker.dispatcher.throttling is not None, world.broker.services.quotas is not None}
    (answer,) = found
    return answer


def test_without_quotas_nothing_is_measured() -> None:
    async def story(world: World) -> None:
        peer = await with_topic()
        assert not measures(world)
        await set_quota([("client-id", "peer")], "producer_byte_rate", 1)
        assert measures(world)
        assert (await peer.ask(produce(1000), 12)).throttle_time_ms > 0
        await set_quota([("client-id", "peer")], "producer_byte_rate", None)
        assert not measures(world)

    run(story)


def test_a_quota_survives_a_restart() -> None:
    async def story(world: World) -> None:
        await set_quota([("user", "ANONYMOUS")], "request_percentage", 0.00001)
        await world.stop_broker()
        await world.start_broker()
        peer = await Peer.connect()
        assert (await peer.ask(MetadataRequest(topics=[]))).throttle_time_ms == 1000

    run(story)


def test_creating_and_deleting_partitions_takes_permits() -> None:
    async def story(world: World) -> None:
        peer = await Peer.connect()
        await set_quota([("client-id", "peer")], "controller_mutation_rate", 1)
        first = await peer.ask(create("a", 15))
        assert (first.topics[0].error_code, first.throttle_time_ms) == (0, 0)
        refused = await peer.ask(create("b", 1))
        assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 3_900 < refused.throttle_time_ms <= 4_000
        # A topic that cannot be created for another reason says so, and takes no permits.
        exists = await peer.ask(create("a", 15))
        assert peer.took_ms >= refused.throttle_time_ms - WAY_MS
        assert exists.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        more = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=20, assignments=None)
        grown = await peer.ask(CreatePartitionsRequest(topics=[more], timeout_ms=1000))
        assert grown.results[0].error_code == 0
        deletion = await peer.ask(DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000), 5)
        assert deletion.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        # An old client is served, and has to pause afterwards.
        old = await peer.ask(create("c", 10), 5)
        assert old.topics[0].error_code == 0
        assert old.throttle_time_ms > 9_000

    run(story)


def metadata_of(*names: str) -> MetadataRequest:
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=asked, allow_auto_topic_creation=True)


def test_topics_that_are_created_because_a_client_asks_for_them_take_permits() -> None:
    async def story(world: World) -> None:
        peer = await Peer.connect()
        await set_quota([("client-id", "peer")], "controller_mutation_rate", 1)
        assert (await peer.ask(create("a", 15))).throttle_time_ms == 0
        refused = await peer.ask(metadata_of("b", "a"))
        assert [topic.error_code for topic in refused.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        assert 3_900 < refused.throttle_time_ms <= 4_000
        await asyncio.sleep(1)
        other = await Peer.connect("other")
        request = metadata_of("b")
        request.allow_auto_topic_creation = False
        (missing,) = (await other.ask(request)).topics
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it was not created"
        begun = await peer.ask(metadata_of("b"))
        assert peer.took_ms > 2_500, "the connection was not read"
        assert begun.throttle_time_ms == 0
        await asyncio.sleep(1)
        assert (await other.ask(request)).topics[0].error_code == 0
        many = await peer.ask(metadata_of(*(f"many-{number}" for number in range(300))))
        assert len(many.topics) == 300
        await peer.ask(metadata_of("a"))
        assert peer.took_ms > 500

    run(story)


def test_asking_again_for_a_topic_takes_no_permits() -> None:
    async def story(world: World) -> None:
        peer = await Peer.connect()
        await set_quota([("client-id", "peer")], "controller_mutation_rate", 1)
        for _ in range(50):
            assert (await peer.ask(metadata_of("b"))).throttle_time_ms == 0

    run(story)


def test_our_clients_pause_as_long_as_a_broker_wants() -> None:
    """Longer than request.timeout.ms: no request may time out behind a connection that is not read."""

    async def story(world: World) -> None:
        await with_topic()
        await set_quota([("client-id", "limited")], "producer_byte_rate", 1000)
        await set_quota([("client-id", "limited")], "consumer_byte_rate", 1000)
        producer = world.producer(
            client_id="limited", request_timeout_ms=1_000, delivery_timeout_ms=90_000, linger_ms=0
        )
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(5):
            await producer.send_and_wait("t", f"{number}" + "x" * 9_000, partition=0)
        assert loop.time() - begun > 20
        sent = await producer.metrics()
        assert sent["record-retry-total"] == 0
        assert isinstance(sent["request-error-total"], dict)
        assert sum(sent["request-error-total"].values()) == 0
        longest, average = sent["produce-throttle-time-max"], sent["produce-throttle-time-avg"]
        assert isinstance(longest, int)
        assert isinstance(average, float)
        assert longest > average > 1_000
        consumer = world.consumer(client_id="limited", request_timeout_ms=1_000, fetch_max_wait_ms=100)
        await consumer.assign([("t", 0)])
        await consumer.seek_to_beginning()
        read = 0
        while read < 5:
            read += len(await consumer.poll(1_000))
        measured = await consumer.metrics()
        assert measured["fetch-throttle-time-max"] != 0
        assert isinstance(measured["request-error-total"], dict)
        assert sum(measured["request-error-total"].values()) == 0
        await producer.close()
        await consumer.close()

    run(story)


def test_an_address_above_its_connection_rate_waits_and_is_refused() -> None:
    async def story(world: World) -> None:
        await set_quota([("ip", "127.0.0.1")], "connection_creation_rate", 1)
        loop = asyncio.get_running_loop()
        opened = [await Connection.open(BROKER, client_id="peer") for _ in range(10)]
        begun = loop.time()
        with pytest.raises(KafkaError):
            await Connection.open(BROKER, client_id="peer")
        assert 0.05 < loop.time() - begun <= 1.1
        assert world.broker is not None
        assert world.broker.server is not None
        assert world.broker.server.refused == 1
        await asyncio.sleep(12)
        await Connection.open(BROKER, client_id="peer")
        assert not opened[0].is_closed

    run(story)


@pytest.mark.parametrize("prefix", ["", "listener_name_plaintext_"])
def test_above_the_brokers_rate_connections_wait_their_turn(prefix: str) -> None:
    async def story(world: World) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(30):
            await Connection.open(BROKER, client_id="peer")
        # Ten seconds' worth at once, then two per second.
        assert loop.time() - begun == pytest.approx(5, abs=1)

    run(story, **{f"{prefix}max_connection_creation_rate": "2"})
