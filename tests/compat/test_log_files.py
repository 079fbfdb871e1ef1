"""File compatibility: Ottla opens Apache Kafka's files, and Apache Kafka opens Ottla's. Spec: C3."""

import shutil
from pathlib import Path

import pytest

from ottla.clock import monotonic_ms, system_clock
from ottla.log.checkpoints import decode_partition_metadata
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.inspect import (
    DumpedBatch,
    dump_offset_index,
    dump_segment,
    dump_snapshot,
    dump_time_index,
    dump_transaction_index,
)
from ottla.log.log_directory import LogDirectory
from ottla.log.partition_log import Origin
from ottla.protocol.records.record_batch import ControlType, build_batch, control_batch, iter_batches
from ottla.types import TopicPartition
from tests.support.processes.oracle import RealKafka, oracle_available
from tests.support.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.skipif(oracle_available() is not None, reason=str(oracle_available())),
]
THEIRS, OURS = TopicPartition("theirs", 0), TopicPartition("ours", 0)
TOPIC_SETTINGS = {"segment.bytes": str(1024 * 1024), "index.interval.bytes": "500"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of an Apache Kafka that has run for a while and was stopped cleanly."""
    path = tmp_path_factory.mktemp("kafka-data")
    with RealKafka(data=str(path)) as kafka:
        write_theirs(kafka.bootstrap)
    return path


def write_theirs(bootstrap: str) -> None:
    """Forty transactions, every fourth aborted."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topics = [NewTopic(tp.topic, 1, 1, config=TOPIC_SETTINGS) for tp in (THEIRS, OURS)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer", "compression.type": "lz4"})
    producer.init_transactions(60)
    for number in range(40):
        producer.begin_transaction()
        producer.produce(THEIRS.topic, f"value-{number}", str(number))
        producer.flush(PATIENCE_S)
        if number % 4 == 3:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def test_files_written_by_apache_kafka_can_be_read(data: Path) -> None:
    directory = data / str(THEIRS)
    segment = str(directory / f"{0:020d}.log")
    batches = [batch for batch in dump_segment(segment) if isinstance(batch, DumpedBatch)]
    assert all(batch.is_valid for batch in batches)
    assert len(batches) == 80
    markers = [batch.marker() for batch in batches if batch.header.is_control]
    assert [kind for kind, _ in filter(None, markers)].count(ControlType.ABORT) == 10
    positions = {batch.header.last_offset: batch.position for batch in batches}
    index = dump_offset_index(segment.replace(".log", ".index"))
    assert index
    assert all(positions[entry.offset] == entry.position for entry in index)
    latest = max(batch.header.max_timestamp for batch in batches)
    assert dump_time_index(segment.replace(".log", ".timeindex"))[-1].timestamp == latest
    aborted = dump_transaction_index(segment.replace(".log", ".txnindex"))
    assert [entry.last_offset for entry in aborted] == [
        batch.header.base_offset
        for batch in batches
        if batch.marker() and batch.marker()[0] is ControlType.ABORT  # type: ignore[index]
    ]
    (snapshot,) = directory.glob("*.snapshot")
    assert int(snapshot.stem) == 80
    (row,) = {row.producer_id: row for row in dump_snapshot(str(snapshot))}.values()
    assert row.last_offset == max(b.header.last_offset for b in batches if not b.header.is_control)


def test_the_data_directory_of_apache_kafka_can_be_opened(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("__cluster_metadata*", ".lock"))
    directory = LogDirectory.open(str(copy), disk=Disk(), clock=system_clock, monotonic=monotonic_ms)
    directory.load()
    assert directory.was_clean
    assert not directory.failed
    log = directory.logs[THEIRS]
    assert log.log_end_offset == log.high_watermark == log.last_stable_offset == 80
    assert log.topic_id != bytes(16)
    assert log.leader_epochs.entries() == [(0, 0)]
    assert len(log.aborted_transactions(0, 80)) == 10
    (entry,) = log.producers.entries()
    theirs = [header for _, header in iter_batches(log.read(0, 1 << 20, upper_bound=80)) if not header.is_control]
    assert entry.last_data_offset == theirs[-1].last_offset
    directory.close()


def write_ours(data: Path) -> tuple[list[bytes], int, int]:
    """Puts an Ottla log in the place of a Kafka topic: (committed values, end offset, first timestamp)."""
    metadata = (data / str(OURS) / "partition.metadata").read_bytes()
    shutil.rmtree(data / str(OURS))
    directory = LogDirectory.open(str(data), disk=Disk(), clock=system_clock, monotonic=monotonic_ms)
    directory.load()
    config = TopicConfig(segment_bytes=4000, index_interval_bytes=300)
    log = directory.create_log(OURS, decode_partition_metadata(metadata), config)
    committed, now = [], system_clock()
    for number in range(120):
        value = f"value-{number}".encode()
        batch = build_batch(
            [(now + number, b"key", value, [("h", b"x")])],
            producer_id=4242,
            producer_epoch=0,
            base_sequence=number,
            transactional=number % 5 == 0,
        )
        log.append(batch, leader_epoch=0)
        if number % 5 == 0:
            marker = control_batch(
                commit=number % 2 == 0, producer_id=4242, producer_epoch=0, coordinator_epoch=0, timestamp=now
            )
            log.append(marker, leader_epoch=0, origin=Origin.COORDINATOR)
        if number % 10 != 5:
            committed.append(value)
        log.advance_high_watermark(log.log_end_offset)
    assert len(log.segments) > 2
    end = log.log_end_offset
    directory.close()
    return committed, end, now


def test_apache_kafka_opens_and_serves_our_files(data: Path) -> None:
    """Batches, indexes, snapshots, aborted transactions and epochs, all in files written by Ottla."""
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka import TopicPartition as Assignment

    committed, end, now = write_ours(data)
    with RealKafka(data=str(data)) as kafka:
        consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([Assignment(OURS.topic, 0, 0)])
        found: list[bytes | None] = []
        for _ in range(2000):  # a broker that has just started may still report an unknown topic
            message = consumer.poll(1)
            error = None if message is None else message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            if message is not None and error is None:
                found.append(message.value())
        assert found == committed
        assert consumer.get_watermark_offsets(Assignment(OURS.topic, 0), timeout=PATIENCE_S) == (0, end)
        markers_before = len(range(0, 61, 5))
        assert consumer.offsets_for_times([Assignment(OURS.topic, 0, now + 61)], 60)[0].offset == 61 + markers_before
        consumer.close()
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        delivered = []
        producer.produce(
            OURS.topic, b"more", on_delivery=lambda error, message: delivered.append((error, message.offset()))
        )
        producer.flush(PATIENCE_S)
        del producer
        assert delivered == [(None, end)]
        # Other warnings of Kafka, for example on a slow machine, are ignored.
        place, log = f"{OURS.topic}-{OURS.partition}", kafka.log().splitlines()
        problems = [line for line in log if "orrupt" in line or (" ERROR " in line and place in line)]
        # Ottla writes no index for a small last segment; Kafka warns about this and creates one.
        unexpected = [line for line in problems if "Could not find offset index file" not in line]
        assert unexpected == []
        assert len(problems) <= 1
