"""The sink during broker outages: the broker is killed during a task, a decision or a commit, and restarted."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from ottla import Admin, Broker, Producer
from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.tasks import Place, Rows, write_at_least_once, write_exactly_once
from tests.support.processes.oracle import RealKafka, oracle_available
from tests.support.waiting import PATIENCE_S, until
from tests.support.worlds.sink_stage import SinkRun, SinkStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")


class Killable(Protocol):
    """A broker that can be killed and restarted with its data."""

    @property
    def bootstrap(self) -> str: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...


@pytest.fixture(scope="module", params=["ottla", pytest.param("apache", marks=[pytest.mark.oracle, pytest.mark.slow])])
def killable(request: pytest.FixtureRequest, keeper: ThreadPoolExecutor) -> Iterator[Killable]:
    if request.param == "ottla":
        with Broker.embedded(settings={"transaction.two.phase.commit.enable": True}) as broker:
            yield broker
        return
    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    with RealKafka() as kafka:
        yield kafka


@pytest.fixture
def stage(killable: Killable, topic: str) -> SinkStage:
    """Its clients wait for as long as Apache Kafka may need to start on a busy machine."""
    patience_ms = str(int(3 * PATIENCE_S * 1000))
    patient = {"kafka.max.block.ms": patience_ms, "kafka.delivery.timeout.ms": patience_ms}
    return SinkStage(killable.bootstrap, topic, **patient)


class Away:
    """Kills the broker, and restarts it after a while."""

    def __init__(self, broker: Killable, keeper: ThreadPoolExecutor) -> None:
        self.broker, self._keeper = broker, keeper
        self._back: Future[None] | None = None

    def go(self, for_s: float = 1.5) -> None:
        self.broker.kill()
        self._back = self._keeper.submit(self._come_back, for_s)

    def _come_back(self, after_s: float) -> None:
        threading.Event().wait(after_s)
        self.broker.restart()

    def join(self) -> None:
        assert self._back is not None
        self._back.result(3 * PATIENCE_S)


@pytest.fixture(scope="module")
def keeper() -> Iterator[ThreadPoolExecutor]:
    """The thread that restarts brokers. It must outlive them: Kafka's process ends with the thread that started it."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture
def away(killable: Killable, keeper: ThreadPoolExecutor) -> Iterator[Away]:
    outage = Away(killable, keeper)
    yield outage
    outage.join()


def rows_of(stage: SinkStage, count: int, at_half: Callable[[], None]) -> Rows:
    """The rows in ten batches. An event happens after the first five."""

    def batches() -> Iterator[Any]:
        for number in range(10):
            if number == 5:
                at_half()
            yield pa.record_batch({"value": [f"{number * count // 10 + row:06}" for row in range(count // 10)]})

    return Rows(batches(), ["value"], stage.options)


def expected(count: int) -> list[str]:
    return [f"{number:06}" for number in range(count)]


def place(run: SinkRun, batch: int = 0) -> Place:
    return run.place(batch, 0)


def test_a_task_continues_when_the_broker_is_back(stage: SinkStage, away: Away) -> None:
    run = stage.start()
    written = write_exactly_once(stage.options, place(run), rows_of(stage, 1000, away.go))
    run.commit(0, written)
    assert stage.read() == expected(1000)


def test_a_driver_continues_when_the_broker_is_back(stage: SinkStage, away: Away) -> None:
    """Everything was prepared; the broker is killed and restarted while the driver decides and commits."""
    run = stage.start()
    parts = [run.write(0, task, [f"{task}"]) for task in range(3)]
    away.go()
    run.commit(0, *parts)
    assert stage.read() == ["0", "1", "2"]


def test_at_least_once_continues_when_the_broker_is_back(stage: SinkStage, away: Away) -> None:
    """The producer is idempotent: its retries duplicate nothing."""
    write_at_least_once(stage.options, rows_of(stage, 1000, away.go))
    assert stage.read() == expected(1000)


@pytest.mark.slow
@pytest.mark.parametrize("away_s", [8, pytest.param(60, marks=pytest.mark.long)])
def test_a_query_survives_a_broker_outage(
    spark: "SparkSession", topic: str, tmp_path: Path, keeper: ThreadPoolExecutor, away_s: int
) -> None:
    """Spec: F2. The broker is killed after a task of the second batch sent half of its rows. The query runs on."""
    middle, gone = tmp_path / "middle", tmp_path / "gone"

    def wait_in_the_middle(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for row in range(len(batch)):
                if batch.column(0)[row].as_py() == b"000150" and not middle.exists():
                    middle.touch()
                    for _ in range(3000):
                        if gone.exists():
                            break
                        threading.Event().wait(0.1)
                yield batch.slice(row, 1)

    with Broker.embedded(settings={"transaction.two.phase.commit.enable": True}) as broker:
        out = SinkStage(broker.bootstrap, f"{topic}-out")
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(300):
                producer.send(topic, f"{number:06}")
        reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
        rows = reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100").load()
        slow = rows.selectExpr("value").mapInArrow(wait_in_the_middle, "value binary")
        writer = slow.writeStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
        query = (
            writer.options(topic=out.topic, sinkName=out.sink, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert until(lambda: middle.exists() or not query.isActive, 3 * PATIENCE_S)
        assert query.isActive, query.exception()
        away = Away(broker, keeper)
        away.go(for_s=away_s)
        gone.touch()
        away.join()
        assert query.awaitTermination(int(3 * PATIENCE_S))
        assert out.read() == expected(300)


def test_the_error_names_unreachable_brokers(topic: str) -> None:
    with Broker.embedded() as broker:
        stage = SinkStage(
            broker.bootstrap, topic, **{"kafka.max.block.ms": "500", "kafka.delivery.timeout.ms": "30005"}
        )
    with pytest.raises(SinkError, match=rf"Are the brokers at {broker.bootstrap} running\?"):
        write_at_least_once(stage.options, rows_of(stage, 10, lambda: None))
