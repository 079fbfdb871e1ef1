"""A broker on a full disk: it starts, serves what is stored, and says what it cannot do. Spec: R6."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Admin, Broker, Consumer, Producer
from ottla.broker.embedded.broker import EmbeddedBroker
from ottla.errors import ErrorCode, OttlaError
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch
from tests.support.processes.small_disk import SmallDisk, small_disk
from tests.support.waiting import eventually
from tests.support.wire.raw import RawConnection

RECORDS = 50
SIZE = "12m"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", SIZE) as mounted:
        yield mounted


def records_in(broker: EmbeddedBroker) -> int:
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([("orders", 0)])
        consumer.seek(("orders", 0), 0)
        return len(consumer.poll(300_000))


def produce(client: RawConnection) -> ErrorCode:
    """A batch that does not fit into what is left of a page."""
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="orders",
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=0, records=build_batch([(0, None, bytes(100_000), ())]))
                ],
            )
        ],
    )
    return ErrorCode(client.ask(request, 9).responses[0].partition_responses[0].error_code)


def create(client: RawConnection, topic: str) -> tuple[ErrorCode, str]:
    request = CreateTopicsRequest(
        topics=[CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)],
        timeout_ms=5_000,
    )
    answer = client.ask(request, 7).topics[0]
    return ErrorCode(answer.error_code), answer.error_message or ""


@pytest.mark.parametrize("ending", ["stop", "kill", "kill and lose the indexes"])
def test_it_starts_serves_what_is_stored_and_recovers_without_a_restart(disk: SmallDisk, ending: str) -> None:
    data = disk.path / "data"
    with Broker.embedded(data, settings={"log.index.size.max.bytes": 4096}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("orders")
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"%d" % number)
        if ending == "stop":
            broker.stop()
        else:
            broker.kill()
        loses_indexes = ending == "kill and lose the indexes"
        if loses_indexes:
            for index in data.glob("orders-0/*index"):
                index.unlink()
        disk.fill()
        broker.restart()
        assert "metadata.sqlite: the disk is full (0 bytes free: " in broker.log
        assert "metadata cannot be changed until 1048576 bytes are free" in broker.log
        with RawConnection(broker.bootstrap) as client:
            if not loses_indexes:
                assert records_in(broker) == RECORDS
            assert produce(client) == ErrorCode.KAFKA_STORAGE_ERROR
            code, message = create(client, "more")
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            assert f"{data}/metadata/metadata.sqlite: the disk is full (" in message
            assert "free some space and try again, no restart is needed" in message

            disk.free()
            eventually(lambda: create(client, "more")[0] in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS))
            assert produce(client) == ErrorCode.NONE
            assert records_in(broker) == RECORDS + 1
        epoch = "leader in leader epoch 1 at offset 50"
        assert broker.log.count(epoch) == 1, "the epoch of the session in memory is the one that is stored later"
        broker.restart()
        assert records_in(broker) == RECORDS + 1
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            assert {topic.name for topic in admin.list_topics()} >= {"orders", "more"}


def test_a_new_broker_on_a_full_disk_says_what_is_wrong(disk: SmallDisk) -> None:
    (disk.path / "data").mkdir()
    disk.fill()
    with pytest.raises(OttlaError) as caught:
        Broker.embedded(disk.path / "data")
    assert "No space left on device" in str(caught.value.hint) or "the disk is full" in str(caught.value.hint)
