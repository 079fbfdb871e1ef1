"""Spec: R6. Repeated `kill -9` under load: ten rounds per test run, OTTLA_ROUNDS=100 for a hundred.

A producer with idempotence keeps sending across the restarts, as an application would. At the end every
acknowledged record is at its offset, offsets are dense, nothing is stored twice, and the indexes find everything.
"""

import functools
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.records.record_batch import Record, build_batch, iter_batches, read_records
from tests.support.clients import foreign_clients
from tests.support.waiting import PATIENCE_S
from tests.support.wire.raw import RawConnection

ROUNDS = int(os.environ.get("OTTLA_ROUNDS", "10"))
PARTITIONS = 3
TOPIC = "survivor"
# Small segments, so that recovery meets several of them with all their indexes.
CONFIGS = {"segment.bytes": "1048576", "index.interval.bytes": "4096"}


class Load:
    """An idempotent librdkafka producer that numbers its records per partition and records the acknowledged offsets."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self.promised: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]  # offset -> number
        self.failed: list[str] = []
        self.sent = [0] * PARTITIONS
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "log_level": 0,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "socket.timeout.ms": 10_000,
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        choose = random.Random(7)
        while not self._ending.is_set():
            partition = choose.randrange(PARTITIONS)
            number = self.sent[partition]
            padding = b"x" * choose.randrange(300)
            try:
                self._producer.produce(
                    TOPIC,
                    b"%d %s" % (number, padding),
                    partition=partition,
                    on_delivery=functools.partial(self._noted, number=number),
                )
                self.sent[partition] += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            if number % 50 == 0:
                # Leaves some CPU time to the broker, which is what is tested.
                self._ending.wait(0.005)

    def _noted(self, error: Any, message: Any, number: int) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.promised[message.partition()][message.offset()] = number

    @property
    def promised_count(self) -> int:
        return sum(len(offsets) for offsets in self.promised)

    def finish(self) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)
        left = self._producer.flush(PATIENCE_S)
        assert left == 0, f"{left} records were never answered"


def read_everything(bootstrap: str, partition: int) -> list[Record]:
    """All records of a partition, fetched batch by batch and checked to follow one another."""
    records: list[Record] = []
    with RawConnection(bootstrap) as connection:
        while True:
            answer = connection.ask(fetch_request(partition, len(records)), 11)
            (found,) = answer.responses[0].partitions
            assert found.error_code == 0
            data = bytes(found.records or b"")
            new = [r for position, h in iter_batches(data) for r in read_records(data, position, h)]
            new = [record for record in new if record.offset >= len(records)]
            if not new:
                assert found.high_watermark == len(records)
                return records
            records += new


def fetch_request(partition: int, offset: int, max_bytes: int = 4 << 20) -> FetchRequest:
    wanted = FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[wanted])],
    )


def number_of(record: Record) -> int:
    assert record.value is not None
    return int(record.value.split(b" ", 1)[0])


def check_indexes(bootstrap: str, partition: int, records: list[Record]) -> None:
    """Random places are found again by offset and by time."""
    choose = random.Random(partition)
    with RawConnection(bootstrap) as connection:
        for _ in range(20):
            expected = records[choose.randrange(len(records))]
            answer = connection.ask(fetch_request(partition, expected.offset, 1), 11)
            data = bytes(answer.responses[0].partitions[0].records)
            found = [r for position, h in iter_batches(data) for r in read_records(data, position, h)]
            assert any(record == expected for record in found)
            asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=expected.timestamp)
            listed = connection.ask(
                ListOffsetsRequest(
                    replica_id=-1,
                    topics=[ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[asked])],
                ),
                7,
            )
            offset = listed.topics[0].partitions[0].offset
            assert 0 <= offset <= expected.offset
            assert records[offset].timestamp >= expected.timestamp
            assert all(record.timestamp < expected.timestamp for record in records[max(0, offset - 50) : offset])


@pytest.mark.timeout(1800 + 60 * ROUNDS)
def test_acknowledged_records_are_neither_lost_nor_duplicated(tmp_path: Path) -> None:
    """Spec: R6. Every acknowledged record exists once, offsets have no gaps, and indexes are rebuilt."""
    choose = random.Random(20)
    with Broker.embedded(tmp_path / "data") as broker:
        assert foreign_clients()[0].create_topic(
            broker.bootstrap, TOPIC, partitions=PARTITIONS, configs=CONFIGS
        ) == "ok"  # fmt: skip
        load = Load(broker.bootstrap)
        for round_number in range(ROUNDS):
            # Each round first waits for new acknowledgements, so every kill hits a broker under load.
            before, deadline = load.promised_count, time.monotonic() + 60
            while load.promised_count < before + 200:
                assert time.monotonic() < deadline, f"round {round_number}: no progress; {load.failed[:3]}"
                time.sleep(0.005)
            time.sleep(choose.random() * 0.2)
            broker.kill()
            broker.restart()
        load.finish()
        assert not load.failed, load.failed[:3]
        broker.kill()
        broker.restart()
        for partition in range(PARTITIONS):
            records = read_everything(broker.bootstrap, partition)
            assert [record.offset for record in records] == list(range(len(records)))
            assert [number_of(record) for record in records] == list(range(load.sent[partition]))
            promised = load.promised[partition]
            assert len(promised) == load.sent[partition]
            assert all(number_of(records[offset]) == number for offset, number in promised.items())
            check_indexes(broker.bootstrap, partition, records)
        # Each round has added records.
        assert sum(load.sent) >= 200 * ROUNDS


def newest_segment(data: Path, partition: int) -> Path:
    return max(data.rglob(f"{TOPIC}-{partition}/*.log"))


@pytest.mark.parametrize("tail", ["garbage", "half a batch", "zeros", "a batch with a wrong checksum"])
def test_a_torn_tail_of_the_log_is_truncated(tmp_path: Path, tail: str) -> None:
    """Spec: R6. Bytes that a power loss leaves after the last complete batch are removed; all before them stay."""
    values = [b"%d" % i for i in range(500)]
    client = foreign_clients()[0]
    from tests.support.clients import Message

    with Broker.embedded(tmp_path / "data") as broker:
        client.create_topic(broker.bootstrap, TOPIC, configs=CONFIGS)
        sent = client.produce(broker.bootstrap, TOPIC, [Message(value) for value in values], idempotent=True)
        assert sent == list(range(500))
        broker.kill()
        batch = build_batch([(1_700_000_000_000, None, b"never acknowledged" * 20, ())], base_offset=500)
        broken = bytearray(batch)
        broken[-1] ^= 1
        torn = {
            "garbage": random.Random(3).randbytes(333),
            "half a batch": batch[: len(batch) // 2],
            "zeros": bytes(500),
            "a batch with a wrong checksum": bytes(broken),
        }[tail]
        with open(newest_segment(tmp_path, 0), "ab") as segment:
            segment.write(torn)
        broker.restart()
        assert [record.value for record in read_everything(broker.bootstrap, 0)] == values
        assert client.produce(broker.bootstrap, TOPIC, [Message(b"next")]) == [500]


def test_missing_and_corrupt_indexes_are_rebuilt(tmp_path: Path) -> None:
    """Spec: R6. Without indexes, or with corrupt ones, the log returns the same records."""
    from tests.support.clients import Message

    client = foreign_clients()[0]
    at = 1_700_000_000_000
    with Broker.embedded(tmp_path / "data") as broker:
        client.create_topic(broker.bootstrap, TOPIC, configs=CONFIGS)
        for part in range(80):
            messages = [Message(b"x" * 1000, None, (), at + part * 50 + i) for i in range(50)]
            client.produce(broker.bootstrap, TOPIC, messages)
        before = read_everything(broker.bootstrap, 0)
        assert len(before) == 4000
        broker.kill()
        indexes = sorted(tmp_path.rglob(f"{TOPIC}-0/*index"))
        assert len(indexes) >= 4, "two closed segments at least, each with two indexes"
        for number, index in enumerate(indexes):
            if number % 2:
                index.unlink()
            else:
                index.write_bytes(random.Random(number).randbytes(96))
        broker.restart()
        assert read_everything(broker.bootstrap, 0) == before
        check_indexes(broker.bootstrap, 0, before)
