"""Mistakes with the public API: each one is reported in time, by name, and with a hint."""

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla import (
    Admin,
    ArgumentError,
    AsyncDeserializingConsumer,
    Consumer,
    DeserializingConsumer,
    ErrorCode,
    KafkaError,
    OttlaError,
    Producer,
    RecordDeserializationError,
    TopicPartition,
)
from ottla.assignors import Assignment, Assignor, ClusterMetadata, PartitionAssignor, Subscription
from ottla.clock import monotonic
from tests.support.waiting import PATIENCE_S, eventually, slowness

TIMEOUT_MS = 600
LATEST_S = 10.0
"""Every error is raised within this time."""


# --- no broker at the address -------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Starts a server that is not a broker; returns its address."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                answer(connection)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.append(connection)
                    threading.Thread(target=talk, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
    for connection in connections:
        connection.close()


def speak_http(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    connection.close()


def stay_silent(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def hang_up(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.close()


def speak_nonsense(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(b"\x00\x00\x00\x10" + b"\x07" * 16)
    stay_silent(connection)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate in one file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    try:
        subprocess.run(
            [*command, "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True, timeout=PATIENCE_S
        )
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture(params=["nobody", "no such host", "HTTP", "TLS", "silence", "hangs up", "nonsense"])
def address(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """An address without a broker, and the expected error."""
    if request.param == "nobody":
        yield "127.0.0.1:1", "cannot connect to 127.0.0.1:1: connection refused"
        return
    if request.param == "no such host":
        yield "no-such-host.invalid:9092", "no-such-host.invalid:9092"
        return
    if request.param == "TLS":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(request.getfixturevalue("certificate"))

        def speak_tls(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True)

        with listening(speak_tls) as at:
            yield at, at
        return
    answer, said = {
        "HTTP": (speak_http, "does not speak the Kafka protocol: it speaks HTTP"),
        "silence": (stay_silent, "within"),
        "hangs up": (hang_up, "closed a new connection without an answer"),
        "nonsense": (speak_nonsense, "unreadable bytes"),
    }[request.param]
    with listening(answer) as at:
        yield at, said


IN_TIME = {"default_api_timeout_ms": TIMEOUT_MS}
BLOCKING = {"max_block_ms": TIMEOUT_MS}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[[Any], Any]]] = {
    "topics": (Admin, IN_TIME, lambda admin: admin.list_topics()),
    "send": (Producer, BLOCKING, lambda producer: producer.send("t", "v")),
    "transactions": (Producer, BLOCKING | {"transactional_id": "t"}, lambda producer: producer.init_transactions()),
    "end offsets": (Consumer, IN_TIME, lambda consumer: consumer.end_offsets([("t", 0)])),
    "position": (Consumer, IN_TIME, lambda consumer: (consumer.assign([("t", 0)]), consumer.position(("t", 0)))),
    "committed": (Consumer, IN_TIME | {"group_id": "g"}, lambda consumer: consumer.committed([("t", 0)])),
}


@pytest.mark.parametrize("call", CALLS)
def test_without_a_broker_every_call_names_the_address_in_time(address: tuple[str, str], call: str) -> None:
    (at, said), (make, settings, ask) = address, CALLS[call]
    with make(None, bootstrap_servers=at, **settings) as client:
        started = monotonic()
        with pytest.raises(KafkaError) as caught:
            ask(client)
        assert monotonic() - started < LATEST_S * slowness()
    assert at in str(caught.value)
    assert said in str(caught.value) or "within" in str(caught.value), caught.value


def test_a_poll_without_a_broker_returns_nothing_and_logs_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    """Like Kafka's consumer: a broker that is unavailable for a while is not an error."""
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        consumer.subscribe(["t"])
        told = "cannot connect to 127.0.0.1:1: connection refused"
        eventually(lambda: bool(consumer.poll(200)) or told in caplog.text)
        assert not consumer.poll(200)


def test_tls_is_recognised_by_its_first_bytes() -> None:
    alert = bytes([0x15, 3, 3, 0, 2, 2, 22])

    def refuse(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(alert)

    with (
        listening(refuse) as at,
        Admin(bootstrap_servers=at, default_api_timeout_ms=300_000) as admin,
        pytest.raises(KafkaError, match="uses TLS, but this client does not"),
    ):
        admin.list_topics()


# --- a topic that does not exist ------------------------------------------------------------------------------


def test_a_missing_topic_is_named(broker: Any, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        for call in (
            lambda: admin.describe_topics([topic]),
            lambda: admin.delete_topics([topic]),
            lambda: admin.list_offsets({TopicPartition(topic, 0): -1}),
            lambda: admin.describe_configs("topic", topic),
            lambda: admin.delete_records({TopicPartition(topic, 0): 1}),
        ):
            with pytest.raises(KafkaError, match=topic) as caught:
                call()
            assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    settings = {"bootstrap_servers": broker.bootstrap, "allow_auto_create_topics": False}
    with Consumer(None, **settings) as consumer:
        for ask in (consumer.partitions_for, lambda name: consumer.end_offsets([(name, 0)])):
            with pytest.raises(KafkaError, match=topic) as caught:
                ask(topic)
            assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
            consumer.partitions_for("no spaces allowed")


def test_a_missing_partition_is_reported_with_the_existing_ones(broker: Any, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.partitions_for(topic)
        with pytest.raises(KafkaError, match="0 to 1, not 2"):
            producer.send(topic, "v", partition=2)
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer, pytest.raises(KafkaError, match="0 to 1, not 2"):
        consumer.end_offsets([(topic, 2)])


# --- a deserializer that fails -----------------------------------------------------------------------------------


@pytest.fixture
def orders(broker: Any, topic: str) -> str:
    """Two partitions; the third record of the first and the key of the last of the second cannot be deserialized."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(5):
            producer.send(topic, "{" if number == 2 else json.dumps({"n": number}), key=f"{number}", partition=0)
        producer.send(topic, None, key="7", partition=1)
        producer.send(topic, json.dumps({"n": 8}), key=b"\xff", partition=1)
    return topic


def test_a_record_that_cannot_be_deserialized_is_named_and_can_be_skipped(broker: Any, orders: str) -> None:
    """Records before it are returned first, and a commit stops before it."""
    found: list[Any] = []
    failures: list[RecordDeserializationError] = []
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": orders, "auto_offset_reset": "earliest"}
    with DeserializingConsumer(
        None, key_deserializer=bytes.decode, value_deserializer=json.loads, **settings
    ) as reader:
        reader.subscribe([orders])
        deadline = monotonic() + 60
        while len(failures) < 4 or len(found) < 5:
            assert monotonic() < deadline, (found, failures)
            try:
                found += [(record.partition, record.key, record.value) for record in reader.poll(500)]
            except RecordDeserializationError as failure:
                failures.append(failure)
                if [each.topic_partition for each in failures].count(failure.topic_partition) == 1:
                    continue  # not skipped yet: it is raised again
                assert reader.position(failure.topic_partition) == failure.offset  # noqa: PT017 - some polls succeed
                reader.seek(failure.topic_partition, failure.offset + 1)
        reader.commit()
        committed = {p.partition: c.offset for p, c in reader.committed([(orders, 0), (orders, 1)]).items() if c}
    first = next(each for each in failures if each.topic_partition.partition == 0)
    assert str(first).startswith(f"the value of {orders}-0 at offset 2 cannot be deserialized: JSONDecodeError")
    assert "seek" in first.hint
    assert first.record.value == b"{"
    assert isinstance(first.__cause__, ValueError)
    second = next(each for each in failures if each.topic_partition.partition == 1)
    assert (second.part, second.offset) == ("key", 1)
    assert sorted(found, key=lambda each: each[:2]) == [
        (0, "0", {"n": 0}),
        (0, "1", {"n": 1}),
        (0, "3", {"n": 3}),
        (0, "4", {"n": 4}),
        (1, "7", None),
    ]
    assert committed == {0: 5, 1: 2}


def test_an_iteration_stops_at_a_bad_record_and_continues_after_it(broker: Any, orders: str) -> None:
    settings = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest"}
    with DeserializingConsumer(None, value_deserializer=json.loads, **settings) as reader:
        reader.assign([(orders, 0)])
        found = []
        with pytest.raises(RecordDeserializationError, match="at offset 2"):  # noqa: PT012 - the loop raises
            for record in reader:
                found.append(record.value)  # noqa: PERF401
        assert reader.position((orders, 0)) == 2
        reader.seek((orders, 0), 3)
        for record in reader:
            found.append(record.value)
            if len(found) == 4:
                break
    assert found == [{"n": 0}, {"n": 1}, {"n": 3}, {"n": 4}]

    async def story() -> None:
        async with AsyncDeserializingConsumer(None, value_deserializer=json.loads, **settings) as reader:
            await reader.assign([(orders, 0)])
            values = [record.value for record in await reader.poll(300_000)]
            with pytest.raises(RecordDeserializationError, match="at offset 2"):
                await reader.poll(300_000)
            await reader.seek((orders, 0), 3)
            async for record in reader:
                values.append(record.value)
                if len(values) == 4:
                    break
            assert values == [{"n": 0}, {"n": 1}, {"n": 3}, {"n": 4}]
            await reader.seek((orders, 0), 2)
            with pytest.raises(RecordDeserializationError):
                async for _ in reader:
                    pass

    asyncio.run(story())


def test_a_deserializer_must_be_callable() -> None:
    with pytest.raises(ArgumentError, match="value_deserializer is not a function"):
        DeserializingConsumer(None, value_deserializer="json")  # type: ignore[call-overload]


# --- an assignor that fails -----------------------------------------------------------------------------------------


class Raising(PartitionAssignor):
    name = "raising"

    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        raise ZeroDivisionError("no members to divide by")


class Forgetful(PartitionAssignor):
    name = "forgetful"

    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        return {}


class Generous(PartitionAssignor):
    """Assigns the first partition to every member, without declaring that this is intended."""

    name = "generous"

    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        return {member: [TopicPartition(each.topics[0], 0)] for member, each in subscriptions.items()}


class Wordless(Assignor):
    name = "wordless"

    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        return "everything to everybody"  # type: ignore[return-value]


class Tactless(PartitionAssignor):
    name = "tactless"

    def subscription(self, topics: list[str]) -> Subscription:
        raise ValueError("no rack")

    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        return {}


@pytest.mark.parametrize(
    ("assignor", "said"),
    [
        (Raising, "assignor raising failed: ZeroDivisionError: no members to divide by"),
        (Forgetful, "assignor forgetful left out ottla-"),
        (Wordless, "assignor wordless returned str, not a dict"),
        (Tactless, r"subscription\(\) of assignor tactless failed: ValueError: no rack"),
    ],
)
def test_a_failing_assignor_is_named_in_poll(broker: Any, topic: str, assignor: type[Assignor], said: str) -> None:
    """Spec: A6. It is called again in the next poll()."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": topic}
    with Consumer(None, **settings, partition_assignment_strategy=[assignor]) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(OttlaError, match=said):
            consumer.poll(300_000)
        assert consumer.assignment() == set()


def test_assigning_a_partition_to_two_members_is_refused_with_both_names(broker: Any, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": topic, "heartbeat_interval_ms": 200}
    with (
        Consumer(None, **settings, partition_assignment_strategy=[Generous], client_id="ann") as ann,
        Consumer(None, **settings, partition_assignment_strategy=[Generous], client_id="bob") as bob,
    ):
        ann.subscribe([topic])
        eventually(lambda: bool(ann.poll(100) or ann.assignment()))
        bob.subscribe([topic])
        with pytest.raises(OttlaError, match=rf"assigned {topic}-0 to both (ann|bob)-\S+ and (ann|bob)-") as caught:
            eventually(lambda: bool(ann.poll(50) or bob.poll(50)))
        assert "shares_partitions" in caught.value.hint


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [Admin, Producer, Consumer])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bootstrap_severs": "h:1"}, "bootstrap_severs"),
        ({"bootstrap_servers": "no-port"}, "Invalid url in bootstrap.servers: no-port"),
        ({"bootstrap_servers": ""}, "bootstrap.servers"),
        ({"request_timeout_ms": "soon"}, "request.timeout.ms"),
        ({"request_timeout_ms": -1}, "request.timeout.ms"),
        ({"client_id": object()}, "Invalid value"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_name(client: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(OttlaError) as caught:
        client(None, **settings)
    assert said in str(caught.value)


def test_a_misspelt_setting_gets_a_suggestion() -> None:
    with pytest.raises(OttlaError) as caught:
        Consumer({"group.idd": "g"})
    assert "group.id" in caught.value.hint
    with pytest.raises(OttlaError, match="set twice"):
        Consumer({"group.id": "g"}, group_id="h")
    with pytest.raises(OttlaError, match="unknown assignor rnge"):
        Consumer(group_id="g", partition_assignment_strategy="rnge")
    with pytest.raises(OttlaError, match="has range twice"):
        Consumer(group_id="g", partition_assignment_strategy="range,range")
    with pytest.raises(OttlaError, match="has the name of a built-in one"):
        Consumer(group_id="g", partition_assignment_strategy=[type("Mine", (Generous,), {"name": "range"})])
