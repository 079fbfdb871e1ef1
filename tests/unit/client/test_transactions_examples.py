"""The examples about transactions and offset stores do what they say, also when they are broken off."""

import importlib.util
import pickle
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Broker, Consumer, Producer
from ottla.client.model import LATEST
from ottla.types import TopicPartition

EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples"
COUNT = 250
IDLE_MS = 700


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    settings = {"group.initial.rebalance.delay.ms": 0, "transaction.two.phase.commit.enable": "true"}
    with Broker.embedded(settings=settings) as running:
        yield running


@pytest.fixture
def source(broker: Any, topic: str) -> str:
    """A topic with the numbers from 0, and empty ones for what becomes of them."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        for name in ("in", "out", "out-offsets", "out-state"):
            admin.create_topic(f"{topic}-{name}", partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(f"{topic}-in", f"{number}", key=f"{number}")
    return topic


def committed(bootstrap: str, topic: str) -> list[str]:
    place = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=bootstrap) as admin:
        latest = admin.list_offsets({place: LATEST})[place]
    assert latest is not None
    end = latest.offset  # not the last stable one: a commit is answered before its mark is written
    settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign([place])
        values: list[str] = []
        while consumer.position(place) < end:
            values += [record.value.decode() for record in consumer.poll(500)]
        return values


class Trouble(Exception):
    pass


def test_exactly_once(broker: Any, source: str) -> None:
    """E9: the example is broken off in the middle of a transaction, and started again."""
    calls = 0

    def break_off(record: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 100:
            raise Trouble
        return bytes(record.value)

    arguments = (broker.bootstrap, f"{source}-in", f"{source}-out", f"{source}-group", "1")
    run = example("exactly_once").run
    with pytest.raises(Trouble):
        run(*arguments, transform=break_off)
    run(*arguments, transform=lambda record: record.value, until_idle_ms=IDLE_MS)
    assert committed(broker.bootstrap, f"{source}-out") == [f"{number}" for number in range(COUNT)]


def test_offsets_in_database(broker: Any, source: str, tmp_path: Path) -> None:
    """E10."""
    run = example("offsets_in_database").run
    for _ in range(2):  # a record that came twice would be refused by the primary key
        run(broker.bootstrap, f"{source}-in", str(tmp_path / "bills.db"), until_idle_ms=IDLE_MS)
    found = sqlite3.connect(tmp_path / "bills.db").execute("select text from bills order by id").fetchall()
    assert [int(text) for (text,) in found] == list(range(COUNT))


def test_snapshots(broker: Any, source: str) -> None:
    """E10."""
    run = example("snapshots").run
    arguments = (broker.bootstrap, f"{source}-in", f"{source}-out")
    assert run(*arguments, until_idle_ms=IDLE_MS) == sum(range(COUNT))
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(f"{source}-in", "1000")
    assert run(*arguments, until_idle_ms=IDLE_MS) == sum(range(COUNT)) + 1000
    sums = [sum(range(number + 1)) for number in range(COUNT)]
    assert [int(value) for value in committed(broker.bootstrap, f"{source}-out")] == [*sums, sums[-1] + 1000]


def test_two_phase_commit(broker: Any, source: str) -> None:
    """E11."""
    module = example("two_phase_commit")
    topic = f"{source}-out"
    for values, commit in ((["a", "b"], True), (["c"], False), (["d"], True)):
        prepared = pickle.loads(pickle.dumps(module.prepare(broker.bootstrap, topic, values)))
        module.decide(broker.bootstrap, prepared, commit=commit)
    assert committed(broker.bootstrap, topic) == ["a", "b", "d"]
