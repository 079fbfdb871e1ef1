"""Records with the place they came from: the compiled way and the Python way give the same."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client import model
from ottla.client.consumer import AsyncConsumer
from ottla.client.model import ConsumerRecord, Records
from ottla.protocol._speedups import find_compiled
from ottla.protocol.record_batch import Record
from ottla.types import TopicPartition

COMPILED = find_compiled("ottla.protocol._client_kernels", 1)


@pytest.fixture(params=["python", "compiled"])
def placed(request: pytest.FixtureRequest) -> Callable[..., list[ConsumerRecord]]:
    if request.param == "python":
        return model._placed
    if COMPILED is None:
        pytest.skip("there is no compiled build here")
    way: Callable[..., list[ConsumerRecord]] = COMPILED.placed
    return way


def test_each_record_has_its_place_and_keeps_the_rest(placed: Callable[..., list[ConsumerRecord]]) -> None:
    headers = (("h", b"x"), ("n", None))
    records = [Record(5, 70, b"k", b"v", headers), Record(6, 71, None, None), Record(9, -1, b"", b"")]
    found = placed(ConsumerRecord, "orders", 3, records)
    assert found == [
        ConsumerRecord("orders", 3, 5, 70, b"k", b"v", headers),
        ConsumerRecord("orders", 3, 6, 71, None, None, ()),
        ConsumerRecord("orders", 3, 9, -1, b"", b"", ()),
    ]
    assert all(type(record) is ConsumerRecord for record in found)
    assert found[0].value == b"v" and found[0].topic == "orders"
    assert placed(ConsumerRecord, "orders", 3, []) == []


def test_a_value_that_is_an_object_can_be_part_of_a_cycle_and_is_still_collected(
    placed: Callable[..., list[ConsumerRecord]],
) -> None:
    class Value:
        record: Any = None

    value = Value()
    value.record = placed(ConsumerRecord, "t", 0, [Record(0, 0, None, value)])  # type: ignore[arg-type]
    assert gc.is_tracked(value.record[0])
    del value
    assert gc.collect() >= 1


@pytest.mark.parametrize("records", [[(1, 2, 3)], [None], [[1, 2, b"k", b"v", ()]]])
def test_what_is_no_record_is_refused_by_the_compiled_way(records: list[Any]) -> None:
    if COMPILED is None:
        pytest.skip("there is no compiled build here")
    with pytest.raises(TypeError):
        COMPILED.placed(ConsumerRecord, "t", 0, records)
    with pytest.raises(TypeError):
        COMPILED.placed(list, "t", 0, [])


def test_a_poll_gives_its_partitions_one_after_the_other_as_often_as_it_is_asked() -> None:
    records = Records(
        {TopicPartition("a", 1): [Record(1, 0, None, b"x")], TopicPartition("b", 0): [Record(7, 0, None, b"y")]}
    )
    for _ in range(2):
        assert [(r.topic, r.partition, r.offset, r.value) for r in records] == [("a", 1, 1, b"x"), ("b", 0, 7, b"y")]
    assert len(records) == 2 and records


def test_how_far_the_user_is_can_be_told_while_another_thread_iterates() -> None:
    """A commit runs on the loop's thread, the iteration in the user's."""
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:9")
    consumer._backlog.extend(ConsumerRecord("t", 0, i, 0, None, b"v", ()) for i in range(20_000))
    failures: list[BaseException] = []

    def tell() -> None:
        try:
            while consumer._backlog:
                consumer._consumed()
        except RuntimeError as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        telling = threading.Thread(target=tell)
        telling.start()
        while consumer._backlog:
            consumer._backlog.popleft()
        telling.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not failures
