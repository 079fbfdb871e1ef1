"""The batch of a small Produce request: found by the compiled build and by the Python source alike."""

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records import single_batch
from ottla.protocol.records._speedups import find_compiled
from ottla.protocol.records.record_batch import build_batch

COMPILED = find_compiled("ottla.protocol.records._single_batch", single_batch.INTERFACE)
needs_both = pytest.mark.skipif(COMPILED is None, reason="the extension is not built, or OTTLA_PURE is set")
both = pytest.mark.parametrize(
    "finder", [pytest.param(COMPILED, id="compiled", marks=needs_both), pytest.param(single_batch, id="python")]
)


def produce_body(version: int, *, name: str = "orders", records: bytes | None = None, **fields: Any) -> bytes:
    """The body of a Produce request with one partition; `fields` change the request or its partition."""
    data = ProduceRequest.PartitionProduceData(
        index=fields.pop("index", 3), records=build_batch([(0, None, b"v", ())]) if records is None else records
    )
    topic = ProduceRequest.TopicProduceData(name=name, topic_id=bytes(range(16)), partition_data=[data])
    defaults: dict[str, Any] = {"acks": -1, "timeout_ms": 1000, "topic_data": [topic]}
    return ProduceRequest(**(defaults | fields)).encode(version)


@both
@pytest.mark.parametrize("name", ["o", "größe", "n" * 126])
def test_the_single_batch_of_a_request_is_found(finder: ModuleType, name: str) -> None:
    batch = build_batch([(0, None, b"v" * 20_000, ())])
    frame = b"header" + produce_body(9, name=name, records=batch)
    acks, topic, field, index, start, end = finder.find_single_batch(frame, 6, False)
    assert (acks, topic, index, frame[start:end]) == (-1, name, 3, batch)
    assert field.endswith(name.encode())
    frame = produce_body(13, records=batch, acks=1, index=-1)
    acks, topic, field, index, start, end = finder.find_single_batch(frame, 0, True)
    assert (acks, topic, field, index, frame[start:end]) == (1, bytes(range(16)), bytes(range(16)), -1, batch)


@both
def test_other_requests_are_left_to_the_general_decoder(finder: ModuleType) -> None:
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[ProduceRequest.PartitionProduceData()] * 2)
    others = [
        produce_body(9, transactional_id="t"),
        produce_body(9, topic_data=[]),
        produce_body(9, topic_data=[topic]),
        produce_body(9, name="n" * 127),
        produce_body(9, records=b"too short"),
        produce_body(9) + b"!",
        produce_body(9)[:-1] + b"\1",
        produce_body(9).replace(b"\x07orders", b"\x87\0orders"),
        produce_body(9).replace(b"orders", b"order\xff"),
        b"",
    ]
    for body in others:
        assert finder.find_single_batch(body, 0, False) is None
    assert finder.find_single_batch(produce_body(9), -1, False) is None


@needs_both
@given(version=st.sampled_from([9, 13]), changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255))))
@settings(max_examples=300)
def test_both_find_the_same_in_damaged_requests(version: int, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(produce_body(version))
    for position, value in changes:
        damaged[position % len(damaged)] = value
    for body in (bytes(damaged), bytes(damaged[: len(changes)])):
        for by_id in (False, True):
            assert COMPILED is not None
            assert COMPILED.find_single_batch(body, 0, by_id) == single_batch.find_single_batch(body, 0, by_id)
