"""The whole broker on a real loop and disk: start, metadata, hostile input, stop."""

import asyncio
import logging
import os
import random
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.errors import ErrorCode, OttlaError
from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch, read_records
from tests.support.seeds import each_seed
from tests.support.waiting import eventually_async

CLEAN_MARK = ".kafka_cleanshutdown"


def run(story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story, 60))


@asynccontextmanager
async def running(data: Path, **settings: str) -> AsyncIterator[Broker]:
    values = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(data)}
    broker = Broker(load_config(values | {name.replace("_", "."): value for name, value in settings.items()}))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def until(condition: Callable[[], bool]) -> None:
    """A connection may be busy for a moment only, so the condition is checked in every iteration of the loop."""
    await eventually_async(condition, 60, pause_s=0)


def is_busy(broker: Broker) -> bool:
    assert broker.server is not None
    return any(connection.is_busy for connection in broker.server.connections)


class Client:
    """One connection that speaks the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, request: Any, version: int) -> None:
        self.writer.write(encode_request(request.api_key, version, 5, "test", request))

    async def receive(self, key: ApiKey, version: int) -> Any:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        correlation_id, response = decode_response(key, version, await self.reader.readexactly(size))
        assert correlation_id == 5
        return response

    async def ask(self, request: Any, version: int) -> Any:
        self.send(request, version)
        return await self.receive(request.api_key, version)

    async def create(self, topic: str) -> None:
        new = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        response = await self.ask(CreateTopicsRequest(topics=[new], timeout_ms=5000), 5)
        assert response.topics[0].error_code == 0

    async def produce(self, topic: str, *values: bytes) -> int:
        batch = build_batch([(1_700_000_000_000, None, value, ()) for value in values])
        partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
        response = await self.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), 9)
        (answer,) = response.responses[0].partition_responses
        assert answer.error_code == 0
        return int(answer.base_offset)

    def fetch_request(self, topic: str, offset: int, max_wait_ms: int = 0) -> FetchRequest:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
        return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)

    async def fetch(self, topic: str, offset: int) -> list[bytes | None]:
        response = await self.ask(self.fetch_request(topic, offset), 11)
        (data,) = response.responses[0].partitions
        assert data.error_code == 0
        return [record.value for record in read_records(data.records)] if data.records else []


@asynccontextmanager
async def client_of(broker: Broker, listener: str = "PLAINTEXT") -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.listeners[listener].port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


# --- starting and stopping --------------------------------------------------------------------------------


def test_records_survive_a_clean_stop(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as broker, client_of(broker) as client:
            assert not (tmp_path / CLEAN_MARK).exists()
            await client.create("orders")
            assert await client.produce("orders", b"a", b"b") == 0
        assert (tmp_path / CLEAN_MARK).exists()
        async with running(tmp_path) as broker, client_of(broker) as client:
            assert await client.fetch("orders", 0) == [b"a", b"b"]
            assert await client.produce("orders", b"c") == 2

    run(story())


def test_clients_of_each_listener_get_addresses_of_that_listener(tmp_path: Path) -> None:
    async def story() -> None:
        settings = {
            "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "listener_security_protocol_map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "advertised_listeners": "OUTSIDE://kafka.example:19092",
        }
        async with running(tmp_path, **settings) as broker:
            async with client_of(broker, "INSIDE") as client:
                (broker_seen,) = (await client.ask(MetadataRequest(topics=[]), 9)).brokers
                assert (broker_seen.host, broker_seen.port) == ("127.0.0.1", broker.listeners["INSIDE"].port)
            async with client_of(broker, "OUTSIDE") as client:
                (broker_seen,) = (await client.ask(MetadataRequest(topics=[]), 9)).brokers
                assert (broker_seen.host, broker_seen.port) == ("kafka.example", 19092)

    run(story())


def test_the_budgets_of_all_connections_are_settings_and_one_request_always_fits(tmp_path: Path) -> None:
    async def story() -> None:
        settings = {
            "ottla.unread.responses.max.bytes": "2000000",
            "ottla.incomplete.requests.max.bytes": "3000000",
            "socket.request.max.bytes": "5000000",
        }
        async with running(tmp_path, **settings) as broker:
            assert broker.server is not None
            assert broker.server.unread_responses.limit == 2_000_000
            assert broker.server.incomplete_requests.limit == 5_000_000

    run(story())


def test_settings_changed_at_run_time_take_effect_and_can_be_reset(tmp_path: Path) -> None:
    names = {
        "max.connections": "3",
        "max.connections.per.ip": "2",
        "producer.id.expiration.ms": "5000",
        "log.cleaner.backoff.ms": "7",
        "transaction.partition.verification.enable": "false",
    }

    async def alter(client: Client, operation: int) -> None:
        changes = [
            IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=operation, value=value)
            for name, value in names.items()
        ]
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name="0", configs=changes
        )
        (result,) = (await client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)).responses
        assert result.error_code == 0, result.error_message

    def in_effect(broker: Broker) -> tuple[object, ...]:
        assert broker.server is not None
        limits, config, replicas = broker.server.limits, broker.services.config, broker.services.replicas
        return (
            limits.max_connections,
            limits.max_connections_per_host,
            replicas.config.producer_id_expiration_ms,
            replicas.maintenance._config.log_cleaner_backoff_ms,  # noqa: SLF001 - nothing else shows it soon
            config.transaction_partition_verification_enable,
        )

    async def story() -> None:
        async with running(tmp_path) as broker, client_of(broker) as client, client_of(broker):
            before = in_effect(broker)
            await alter(client, 0)
            assert in_effect(broker) == (3, 2, 5000, 7, False)
            async with client_of(broker) as third:
                with pytest.raises(asyncio.IncompleteReadError):
                    await third.ask(MetadataRequest(topics=[]), 9)
            await alter(client, 1)
            assert in_effect(broker) == before
            async with client_of(broker) as third:
                await third.ask(MetadataRequest(topics=[]), 9)
            await alter(client, 0)
        async with running(tmp_path) as broker:
            assert in_effect(broker) == (3, 2, 5000, 7, False), "they are stored"

    run(story())


def test_a_pattern_of_transactional_ids_is_checked_even_if_there_are_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as broker, client_of(broker) as client:
            for pattern, expected in (("(", ErrorCode.INVALID_REGULAR_EXPRESSION), (".*", 0), ("", 0), (None, 0)):
                request = ListTransactionsRequest(transactional_id_pattern=pattern)
                assert (await client.ask(request, 2)).error_code == expected, pattern

    run(story())


def test_a_hostile_pattern_of_transactional_ids_delays_nobody(tmp_path: Path) -> None:
    """Python's own matcher would backtrack for years."""

    async def story() -> None:
        async with running(tmp_path) as broker, client_of(broker) as client, client_of(broker) as other:
            hostile_id = "a" * 30_000
            for name in (hostile_id, "orders-1"):
                await client.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
                request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
                for _ in range(1000):
                    if not (await client.ask(request, 4)).error_code:
                        break
                    await asyncio.sleep(0.01)
            listing = ListTransactionsRequest(transactional_id_pattern="(a+)+b|orders-.*")
            asked = asyncio.ensure_future(client.ask(listing, 2))
            await asyncio.sleep(0)
            await other.ask(MetadataRequest(topics=[]), 9)
            (found,) = (await asked).transaction_states
            assert found.transactional_id == "orders-1"

    run(story())


def test_a_start_that_fails_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    """A failed start must not mark the data of a crashed broker as cleanly stopped."""

    async def story() -> None:
        async with running(tmp_path) as broker, client_of(broker) as client:
            await client.create("orders")
            await client.produce("orders", b"a")
            port = broker.listeners["PLAINTEXT"].port
            before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if "checkpoint" in name}
            with pytest.raises(OttlaError, match=r"in use|used by"):
                await Broker(load_config({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})).start()
            other = tmp_path / "other"
            other.mkdir()
            (other / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\norders 0 7\n")
            taken = load_config({"listeners": f"PLAINTEXT://127.0.0.1:{port}", "log.dirs": str(other)})
            with pytest.raises(OttlaError, match="the port is in use"):
                await Broker(taken).start()
            assert not (other / CLEAN_MARK).exists()
            assert (other / "recovery-point-offset-checkpoint").read_bytes() == b"0\n1\norders 0 7\n"
            assert before == {
                name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if "checkpoint" in name
            }
            assert await client.fetch("orders", 0) == [b"a"]
        # The lock of the other directory was released.
        async with running(tmp_path / "other"):
            pass

    run(story())


def test_stopping_answers_waiting_requests_and_ends_soon(tmp_path: Path) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with running(tmp_path) as broker, client_of(broker) as client:
            await client.create("orders")
            client.send(client.fetch_request("orders", 0, max_wait_ms=50_000), 11)
            await until(lambda: is_busy(broker))
            began = loop.time()
            await broker.stop()
            response = await client.receive(ApiKey.FETCH, 11)
            assert response.error_code == 0
            assert loop.time() - began < 40
            assert await client.reader.read() == b""

    run(story())


def test_a_topic_is_created_even_if_its_client_disconnects(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as broker:
            async with client_of(broker) as client:
                new = CreateTopicsRequest.CreatableTopic(name="orphan", num_partitions=1, replication_factor=1)
                client.send(CreateTopicsRequest(topics=[new], timeout_ms=5000), 5)
                await until(lambda: is_busy(broker) or "orphan" in broker.image.topics)
            await until(lambda: "orphan" in broker.image.topics)

    run(story())


# --- hostile input ------------------------------------------------------------------------------------------------


def hostile_frames(seed: int) -> list[bytes]:
    """Garbage of every kind: noise, truncated frames, frames with flipped bytes, other protocols."""
    chance = random.Random(seed)
    frames = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00" * 50, b"\xff" * 64, b"\0" * 64]
    frames += [chance.randbytes(chance.randrange(1, 400)) for _ in range(20)]
    frames += [struct.pack(">i", size) for size in (-1, 2**31 - 1, 100_000_000, 0)]
    for key in API:
        for version in (API[key].min_version, API[key].max_version):
            head = struct.pack(">hhih", key, version, 1, 4) + b"evil"
            body = head + chance.randbytes(chance.randrange(0, 60))
            frames.append(struct.pack(">i", len(body)) + body)
    true = encode_request(3, 9, 1, "c", MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")]))
    true += encode_request(18, 3, 1, "c", ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    for _ in range(40):
        flipped = bytearray(true)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        frames.append(bytes(flipped))
        frames.append(true[: chance.randrange(len(true))])
    return frames


@each_seed(3)
def test_hostile_bytes_affect_no_other_connection(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every kind of garbage at a live port: others are served, no broker error is logged, memory stays bounded.

    Spec: R8.
    """

    async def story() -> None:
        async with running(tmp_path, auto_create_topics_enable="false") as broker, client_of(broker) as bystander:
            await bystander.create("orders")
            before = resident_kb()
            for number, garbage in enumerate(hostile_frames(seed)):
                async with client_of(broker) as villain:
                    villain.writer.write(garbage)
                    villain.writer.write_eof()
                    try:
                        async with asyncio.timeout(60):
                            await villain.reader.read()
                    except ConnectionError:
                        pass
                if number % 10 == 0:
                    await bystander.produce("orders", b"%d" % number)
            assert await bystander.fetch("orders", 0)
            assert resident_kb() - before < 30_000

    run(story())
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not faults, [record.getMessage() for record in faults]


def test_a_hundred_frames_that_claim_a_hundred_megabytes_use_little_memory(tmp_path: Path) -> None:
    """Spec: R8. Giant lengths."""

    async def story() -> None:
        async with running(tmp_path) as broker:
            before = resident_kb()
            writers = []
            for _ in range(100):
                _, writer = await asyncio.open_connection("127.0.0.1", broker.listeners["PLAINTEXT"].port)
                writer.write(struct.pack(">i", 100_000_000) + b"x")
                writers.append(writer)
            server = broker.server
            assert server is not None
            await until(lambda: server.bytes_in >= 500)
            assert resident_kb() - before < 60_000
            async with client_of(broker) as client:
                await client.create("orders")
            for writer in writers:
                writer.close()

    run(story())


def resident_kb() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
