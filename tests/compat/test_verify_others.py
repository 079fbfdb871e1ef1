"""`ottla verify` against other brokers: Apache Kafka passes, and librdkafka's mock fails. Spec: R2"""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ottla.verify.anomalies import Kind
from ottla.verify.checks.checker import check, why_inconclusive
from ottla.verify.clients.confluent import ConfluentLibrary
from ottla.verify.clients.own import OwnLibrary
from ottla.verify.clients.port import ClientLibrary
from ottla.verify.run import Run
from ottla.verify.workers.recorder import Recorder
from ottla.verify.workloads import Options
from tests.support.histories import assert_no_anomaly
from tests.support.processes.cluster import KafkaCluster
from tests.support.processes.oracle import RealKafka, oracle_available
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.long


class NodeKiller:
    """Kills one node after the other, and starts each again. A node ends with the thread that has started it, so the
    thread lives on until `release`."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._ending = threading.Event()
        self._healed, self._released = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self, recorder: Recorder, progress_since: Callable[[int], list[str]]) -> None:
        self._recorder, self._progress_since = recorder, progress_since
        self._thread.start()

    def check(self) -> None:
        pass

    def end(self) -> None:
        self._ending.set()
        self._healed.wait()

    def release(self) -> None:
        self._released.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._kill_and_start()
        finally:
            self._healed.set()
        self._released.wait()

    def _kill_and_start(self) -> None:
        chance = random.Random(7)
        while not self._ending.wait(3):
            node = chance.choice(list(self._cluster.nodes.values()))
            fault = self._recorder.begin_fault("kill", (node.id,), f"broker {node.id} is killed")
            node.kill()
            self._ending.wait(chance.uniform(1, 8))
            self._cluster.start(node.id)
            fault.ended_us = self._recorder.now_us()
            while self._progress_since(fault.ended_us) and not self._ending.wait(0.2):
                pass


@pytest.fixture(params=["ottla", "both"])
def libraries(request: pytest.FixtureRequest) -> Callable[[dict[str, str]], list[ClientLibrary]]:
    def make(settings: dict[str, str]) -> list[ClientLibrary]:
        own: list[ClientLibrary] = [OwnLibrary(settings)]
        return own if request.param == "ottla" else [*own, ConfluentLibrary(settings)]

    return make


@pytest.fixture
def apache_is_there() -> None:
    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.oracle
@pytest.mark.java
@pytest.mark.usefixtures("apache_is_there")
def test_apache_kafka_shows_no_anomaly(libraries: Callable[[dict[str, str]], list[ClientLibrary]]) -> None:
    with RealKafka() as kafka:
        settings = {"bootstrap.servers": kafka.bootstrap}
        history = Run(Options(seconds=40), settings, libraries(settings)).execute()
    assert_no_anomaly(history)
    assert why_inconclusive(history) == ""


@pytest.mark.oracle
@pytest.mark.java
@pytest.mark.usefixtures("apache_is_there")
def test_three_nodes_of_apache_kafka_that_are_killed_show_no_anomaly(
    libraries: Callable[[dict[str, str]], list[ClientLibrary]],
) -> None:
    quick = {"offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "5"}
    with KafkaCluster(settings=quick) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap}
        options = Options(seconds=60, patience_s=90)
        killer = NodeKiller(cluster)
        history = Run(options, settings, libraries(settings), fault_injector=killer).execute()
        killer.release()
    history.about["patience_s"] = options.patience_s
    assert_no_anomaly(history)
    assert why_inconclusive(history) == ""
    assert history.faults


def test_the_mock_cluster_of_librdkafka_is_found_out() -> None:
    """It shows records of open and aborted transactions to read_committed consumers."""
    from confluent_kafka import Producer

    owner = Producer({"bootstrap.servers": "in-memory:1", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = owner.list_topics(timeout=PATIENCE_S).brokers
    settings = {"bootstrap.servers": ",".join(f"{each.host}:{each.port}" for each in brokers.values())}

    class MockRun(Run):
        def _create_topics(self, topics: Sequence[str]) -> None:
            for topic in topics:
                owner.list_topics(topic, timeout=PATIENCE_S)  # creates it, with four partitions

    options = Options(workloads=("transactions",), seconds=6, partitions=4, patience_s=20)
    history = MockRun(options, settings, [ConfluentLibrary(settings)]).execute()
    found: dict[Kind, Any] = {anomaly.kind: anomaly for anomaly in check(history)}
    assert Kind.ABORTED_READ in found
    assert len(found[Kind.ABORTED_READ].evidence) == 2
