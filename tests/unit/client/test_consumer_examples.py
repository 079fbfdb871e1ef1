"""The consumer's examples, run as they are: what each promises, and what is left after a crash in between."""

import importlib.util
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Broker, Producer
from ottla.client.model import ConsumerRecord
from ottla.client.offset_store import FileOffsetStore
from ottla.errors import OttlaError
from ottla.types import TopicPartition

EXAMPLES = Path(__file__).parents[3] / "examples"
IDLE_MS = 700


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with Broker.embedded(settings={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture
def filled(broker: Any, topic: str) -> str:
    """A topic of two partitions with the numbers 0 to 99."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    write(broker, topic, range(100))
    return topic


def write(broker: Any, topic: str, numbers: range) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, f"{number}", partition=number % 2)


class CrashError(Exception):
    """The process dies here."""


class Crashing:
    """Processes, and dies once at the n-th record."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.processed: Counter[int] = Counter()

    def __call__(self, record: ConsumerRecord) -> None:
        if sum(self.processed.values()) == self.at:
            self.at = -1
            raise CrashError
        self.processed[int(record.value or b"")] += 1


@pytest.mark.parametrize("at", [0, 1, 60])
def test_at_least_once_repeats_after_a_crash_and_misses_nothing(broker: Any, filled: str, at: int) -> None:
    """MISSION D1."""
    work = Crashing(at)
    with pytest.raises(CrashError):
        example("at_least_once").run(broker.bootstrap, filled, f"g-{filled}", work)
    example("at_least_once").run(broker.bootstrap, filled, f"g-{filled}", work, until_idle_ms=IDLE_MS)
    assert set(work.processed) == set(range(100))
    if at:
        assert max(work.processed.values()) == 2, "what was processed and not committed came again"


@pytest.mark.parametrize("at", [0, 1, 60])
def test_at_most_once_misses_after_a_crash_and_repeats_nothing(broker: Any, filled: str, at: int) -> None:
    """MISSION D1."""
    work = Crashing(at)
    with pytest.raises(CrashError):
        example("at_most_once").run(broker.bootstrap, filled, f"g-{filled}", work)
    example("at_most_once").run(broker.bootstrap, filled, f"g-{filled}", work, until_idle_ms=IDLE_MS)
    assert set(work.processed.values()) <= {1} and len(work.processed) < 100


def test_a_total_follows_its_partition(broker: Any, filled: str) -> None:
    """MISSION A9: state that belongs to a partition is handed on by the listener."""
    module, group = example("rebalance_listener"), f"g-{filled}"
    first = module.run(broker.bootstrap, filled, group, until_idle_ms=IDLE_MS)
    write(broker, filled, range(100, 110))
    second = module.run(broker.bootstrap, filled, group, until_idle_ms=IDLE_MS)
    assert sum(first.values()) == sum(range(100)) and sum(second.values()) == sum(range(110))


def test_a_broadcast_member_restarts_and_neither_loses_nor_repeats(broker: Any, filled: str, tmp_path: Path) -> None:
    """MISSION A7: while another member of the group runs ahead."""
    module, group = example("broadcast"), f"g-{filled}"
    ahead: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    stop = threading.Event()

    def count_ahead(record: ConsumerRecord) -> None:
        ahead[int(record.value or b"")] += 1
        if stop.is_set():
            raise CrashError

    def run_ahead() -> None:
        with pytest.raises(CrashError):
            module.run(broker.bootstrap, filled, group, str(tmp_path / "ahead.json"), count_ahead)

    thread = threading.Thread(target=run_ahead)
    thread.start()

    def count_behind(record: ConsumerRecord) -> None:
        behind[int(record.value or b"")] += 1

    path = str(tmp_path / "behind.json")
    module.run(broker.bootstrap, filled, group, path, count_behind, until_idle_ms=IDLE_MS)
    write(broker, filled, range(100, 200))  # while it is away
    for _ in range(2):
        module.run(broker.bootstrap, filled, group, path, count_behind, until_idle_ms=IDLE_MS)
    assert behind == Counter(range(200)), "each record once, across two restarts"
    stop.set()
    write(broker, filled, range(200, 202))
    thread.join(20)
    assert not thread.is_alive()
    assert {n: ahead[n] for n in range(200)} == dict.fromkeys(range(200), 1)


def test_a_file_of_offsets_that_is_damaged_is_refused_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = FileOffsetStore(path)
    store.save({TopicPartition("t", 0): 5})
    store.save({TopicPartition("t", 1): 7})
    everything = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}
    assert FileOffsetStore(path).load([*everything, TopicPartition("u", 0)]) == everything
    path.write_text(path.read_text()[:-3])
    with pytest.raises(OttlaError, match=r"offsets\.json holds no offsets that can be read"):
        FileOffsetStore(path).load(everything)
