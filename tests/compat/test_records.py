"""Records through each foreign client: what was sent comes back, on Ottla as on Apache Kafka."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clients import ClientError, ForeignClient, Message, Received, foreign_clients
from tests.support.waiting import PATIENCE_S

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def received(messages: list[Message], first_offset: int = 0) -> list[Received]:
    """What a consumer must receive for these messages."""
    return [Received(first_offset + i, m.timestamp_ms or -1, m.key, m.value, m.headers) for i, m in enumerate(messages)]


def text_messages(count: int, timestamp_ms: int = 1_700_000_000_000) -> list[Message]:
    return [Message(b"value %d " % i * 10, b"key %d" % i, (("n", b"%d" % i),), timestamp_ms + i) for i in range(count)]


def test_keys_values_headers_and_timestamps_round_trip(broker: Any, client: ForeignClient, topic: str) -> None:
    at = 1_700_000_000_000
    messages = [
        Message(b"plain", b"k", (), at),
        Message(b"no key", None, (), at + 1),
        Message(None, b"tombstone", (), at + 2),
        Message(b"", b"", (), at + 3),
        Message(bytes(range(256)), bytes(range(255, -1, -1)), (), at + 4),
        Message(b"headers", b"k", (("a", b"1"), ("b", b""), ("a", b"2"), ("ü", b"\x00\xff")), at + 5),
        Message(b"older than the one before", b"k", (), at - 60_000),
        Message(b"at the epoch's first second", b"k", (), 1000),
    ]
    assert client.create_topic(broker.bootstrap, topic) == "ok"
    assert client.produce(broker.bootstrap, topic, messages) == list(range(len(messages)))
    assert client.consume(broker.bootstrap, topic, len(messages)) == received(messages)


def test_a_header_may_have_no_value(broker: Any, client: ForeignClient, topic: str) -> None:
    if client.name == "kafka-python":
        pytest.skip("kafka-python refuses to send a header without a value")
    messages = [Message(b"v", b"k", (("absent", None), ("empty", b"")), 1_700_000_000_000)]
    client.create_topic(broker.bootstrap, topic)
    assert client.produce(broker.bootstrap, topic, messages) == [0]
    assert client.consume(broker.bootstrap, topic, 1) == received(messages)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_round_trips(broker: Any, client: ForeignClient, topic: str, codec: str) -> None:
    messages = text_messages(300)
    client.create_topic(broker.bootstrap, topic)
    assert client.produce(broker.bootstrap, topic, messages, codec=codec) == list(range(300))
    assert client.consume(broker.bootstrap, topic, 300) == received(messages)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_delivers(
    broker: Any, client: ForeignClient, topic: str, acks: str, await_leaders: Callable[..., None]
) -> None:
    messages = text_messages(50)
    client.create_topic(broker.bootstrap, topic)
    await_leaders(topic)  # with acks=0 there is no response that could report a rejected record
    sent = client.produce(broker.bootstrap, topic, messages, acks=acks)
    assert sent == ([-1] * 50 if acks == "0" else list(range(50)))
    assert client.consume(broker.bootstrap, topic, 50) == received(messages)


def test_an_idempotent_producer_leaves_no_gaps_and_no_duplicates(
    broker: Any, client: ForeignClient, topic: str
) -> None:
    """Spec: D3, D4. A producer id and sequences; offsets have no gaps."""
    messages = text_messages(2000)
    client.create_topic(broker.bootstrap, topic)
    assert client.produce(broker.bootstrap, topic, messages, idempotent=True) == list(range(2000))
    # A second producer has another id: equal content makes new records.
    assert client.produce(broker.bootstrap, topic, messages[:5], idempotent=True) == list(range(2000, 2005))
    read = client.consume(broker.bootstrap, topic, 2005)
    assert read == received(messages) + received(messages[:5], 2000)


def test_a_consumer_may_start_inside_a_batch(broker: Any, client: ForeignClient, topic: str) -> None:
    """Spec: R4. Fetch offset inside a batch."""
    messages = text_messages(40)
    client.create_topic(broker.bootstrap, topic)
    client.produce(broker.bootstrap, topic, messages, codec="gzip")
    assert client.consume(broker.bootstrap, topic, 3, start=37) == received(messages)[37:]


def test_an_offset_out_of_range_is_an_error(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic)
    client.produce(broker.bootstrap, topic, text_messages(5))
    with pytest.raises(ClientError) as failure:
        client.consume(broker.bootstrap, topic, 1, start=1000)
    assert failure.value.name in ("OFFSET_OUT_OF_RANGE", "OffsetOutOfRangeException")


def test_a_consumer_at_the_end_gets_later_records(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic)
    assert client.produce(broker.bootstrap, topic, text_messages(1)) == [0]
    results: list[list[Received]] = []
    reader = threading.Thread(target=lambda: results.append(client.consume(broker.bootstrap, topic, 2)), daemon=True)
    # The co-process of the Java client answers one command at a time, so another client sends.
    sender = next(other for other in foreign_clients() if other.name == "confluent-kafka")
    reader.start()
    assert sender.produce(broker.bootstrap, topic, text_messages(1)) == [1]
    reader.join(PATIENCE_S)
    assert [[r.offset for r in result] for result in results] == [[0, 1]]


def test_records_without_a_partition_reach_every_consumer_of_the_topic(
    broker: Any, client: ForeignClient, topic: str
) -> None:
    messages = text_messages(90)
    client.create_topic(broker.bootstrap, topic, partitions=3)
    assert all(isinstance(s, int) for s in client.produce(broker.bootstrap, topic, messages, partition=None))
    ends = [client.list_offsets(broker.bootstrap, topic, ["latest"], partition=p)["latest"].offset for p in range(3)]
    assert sum(ends) == 90
    assert min(ends) > 0
    read = [r for p in range(3) for r in client.consume(broker.bootstrap, topic, ends[p], partition=p)]
    assert sorted(r.value or b"" for r in read) == sorted(m.value or b"" for m in messages)
    by_key = {r.key: r.value for r in read}
    assert by_key == {m.key: m.value for m in messages}


# ---- limits ----------------------------------------------------------------------------------------------


def varint_size(value: int) -> int:
    zigzag = value << 1
    return max(1, (zigzag.bit_length() + 6) // 7)


def value_for_a_batch_of(size_bytes: int) -> bytes:
    """The value whose lone record, without key and headers, makes a batch of exactly this size."""
    for length in range(size_bytes - 61 - 16, size_bytes):
        body = 1 + 1 + 1 + 1 + varint_size(length) + length + 1
        if 61 + varint_size(body) + body == size_bytes:
            return b"x" * length
    raise AssertionError(f"no single record makes a batch of {size_bytes} bytes")


def test_a_batch_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not(
    broker: Any, client: ForeignClient, topic: str
) -> None:
    """Spec: R4. `max.message.bytes`, which counts the whole batch."""
    limit = 100_000
    client.create_topic(broker.bootstrap, topic, configs={"max.message.bytes": str(limit)})
    at_limit = Message(value_for_a_batch_of(limit), None, (), 1_700_000_000_000)
    above = Message(value_for_a_batch_of(limit + 1), None, (), 1_700_000_000_000)
    assert client.produce(broker.bootstrap, topic, [at_limit]) == [0]
    assert client.produce(broker.bootstrap, topic, [above]) == ["MESSAGE_TOO_LARGE"]
    assert client.consume(broker.bootstrap, topic, 1) == received([at_limit])


def test_the_default_limit_is_kafkas(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic)
    at_limit = Message(value_for_a_batch_of(1_048_588), None, (), 1_700_000_000_000)
    above = Message(value_for_a_batch_of(1_048_589), None, (), 1_700_000_000_000)
    assert client.produce(broker.bootstrap, topic, [at_limit], max_request_bytes=3_000_000) == [0]
    above_result = client.produce(broker.bootstrap, topic, [above], max_request_bytes=3_000_000)
    assert above_result == ["MESSAGE_TOO_LARGE"]


def test_ten_megabytes_are_accepted_if_the_topic_allows_them(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic, configs={"max.message.bytes": "20000000"})
    message = Message(bytes(range(256)) * 40_960, b"big", (), 1_700_000_000_000)
    assert client.produce(broker.bootstrap, topic, [message], max_request_bytes=20_000_000) == [0]
    assert client.consume(broker.bootstrap, topic, 1) == received([message])


# ---- what the broker does to records ---------------------------------------------------------------------


def test_log_append_time_replaces_the_producers_timestamp(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic, configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    client.produce(broker.bootstrap, topic, text_messages(3))
    after = int(time.time() * 1000)
    read = client.consume(broker.bootstrap, topic, 3)
    assert [r.value for r in read] == [m.value for m in text_messages(3)]
    assert all(before - 1 <= r.timestamp_ms <= after + 1 for r in read)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_can_have_its_own_codec(broker: Any, topic: str, codec: str) -> None:
    """With a compression.type other than `producer` the broker recompresses the batch."""
    client = foreign_clients()[0]
    messages = text_messages(100)
    client.create_topic(broker.bootstrap, topic, configs={"compression.type": codec})
    sent_as = "lz4" if codec != "lz4" else "zstd"
    assert client.produce(broker.bootstrap, topic, messages, codec=sent_as) == list(range(100))
    assert client.consume(broker.bootstrap, topic, 100) == received(messages)


def test_a_compacted_topic_rejects_records_without_a_key(broker: Any, client: ForeignClient, topic: str) -> None:
    """Spec: R4. A keyless record on a compacted topic."""
    client.create_topic(broker.bootstrap, topic, configs={"cleanup.policy": "compact"})
    # aiokafka's table of errors ends before this one.
    expected = "UnknownError" if client.name == "aiokafka" else "INVALID_RECORD"
    assert client.produce(broker.bootstrap, topic, [Message(b"v", None)]) == [expected]
    assert client.produce(broker.bootstrap, topic, [Message(b"v", b"k")]) == [0]


def test_a_timestamp_too_far_from_now_is_rejected(broker: Any, client: ForeignClient, topic: str) -> None:
    configs = {"message.timestamp.before.max.ms": "600000"}
    client.create_topic(broker.bootstrap, topic, configs=configs)
    old = Message(b"v", b"k", (), int(time.time() * 1000) - 3_600_000)
    recent = Message(b"v", b"k", (), int(time.time() * 1000))
    assert client.produce(broker.bootstrap, topic, [old]) == ["INVALID_TIMESTAMP"]
    assert client.produce(broker.bootstrap, topic, [recent]) == [0]


@pytest.mark.parametrize("producer_name", [c.name for c in foreign_clients()])
def test_each_client_reads_what_each_other_wrote(ottla: Any, producer_name: str, fresh_name: Callable[[], str]) -> None:
    """Every pair of clients, in every codec, through Ottla."""
    available = {c.name: c for c in foreign_clients() if c.unavailable() is None}
    if producer_name not in available:
        pytest.skip(next(c for c in foreign_clients() if c.name == producer_name).unavailable() or "")
    writer = available[producer_name]
    topic, messages = fresh_name(), text_messages(200)
    writer.create_topic(ottla.bootstrap, topic, partitions=len(CODECS))
    for partition, codec in enumerate(CODECS):
        sent = writer.produce(ottla.bootstrap, topic, messages, partition=partition, codec=codec)
        assert sent == list(range(200)), codec
    try:
        for reader in available.values():
            for partition, codec in enumerate(CODECS):
                read = reader.consume(ottla.bootstrap, topic, 200, partition=partition)
                assert read == received(messages), f"{codec} read by {reader.name}"
    finally:
        for one in available.values():
            one.close()
