"""Clusters of brokers in processes of their own, Ottla's or Apache Kafka's, to be killed, paused and restarted.

Both kinds offer the same calls, so one script of faults runs on each of them. What a script asks (who leads, who
coordinates, who is in sync) goes over the wire to a broker that answers.
"""

import concurrent.futures
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from ottla.protocol.api import API, ApiKey
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.schema import Message
from tests.support.ports import fixed_ports
from tests.support.processes.oracle import (
    QUICK_JVM,
    answers_metadata,
    die_with_parent,
    format_storage,
    node_settings,
    prepare_node,
    start_node,
)
from tests.support.waiting import PATIENCE_S, until, until_found
from tests.support.wire.raw import RawConnection

GROUP, TRANSACTION = 0, 1
"""What a coordinator is asked for: FindCoordinator's key types."""

SAFE = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
}
"""Every partition survives the loss of a broker, and a group does not wait for more members."""


class PartitionState(NamedTuple):
    """A partition as a broker describes it."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]

    @property
    def is_in_sync(self) -> bool:
        return self.leader >= 0 and set(self.isr) == set(self.replicas)


class Node:
    """One broker of a cluster: a process, its port and its data."""

    def __init__(self, node_id: int, port: int, home: Path) -> None:
        self.id = node_id
        self.host = "127.0.0.1"
        self.port = port
        self.home = home
        self.data = home / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        home.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"broker {self.id} does not run"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def answers(self) -> bool:
        return self.is_running and not self.is_paused

    @property
    def log(self) -> str:
        """What the broker has logged, in all its lives."""
        path = self.home / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def launch(self) -> None:
        """Starts the process; it may not be ready yet."""
        raise NotImplementedError

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self._ended()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def terminate(self) -> float:
        """SIGTERM: a controlled shutdown. Returns the seconds until the process has ended."""
        assert self.process is not None
        started = time.monotonic()
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"broker {self.id} did not stop:\n{self.log[-4000:]}") from None
        self._ended()
        return time.monotonic() - started

    def _ended(self) -> None:
        process, self.process, self.is_paused = self.process, None, False
        if process is not None:
            process.wait(PATIENCE_S)
            if process.stdin is not None:
                process.stdin.close()


class OttlaNode(Node):
    """`ottla serve` with metadata that all brokers share: a file, or a location in etcd."""

    def __init__(self, node_id: int, port: int, home: Path, metadata: Path | str, settings: Mapping[str, str]) -> None:
        super().__init__(node_id, port, home)
        self.metadata = metadata
        self.settings = dict(settings)
        self.module = "ottla"
        """What runs instead of the command `ottla`: see doomed_broker."""
        self.environment: dict[str, str] = {}

    def launch(self) -> None:
        self._ended()
        command = [sys.executable, "-m", self.module, "serve", "--node-id", str(self.id), "--listen", self.bootstrap]
        command += ["--data", str(self.data), "--metadata", str(self.metadata), "--stop-with-stdin"]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        # As when installed: modules are compiled once.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment |= self.environment
        with open(self.home / "log", "ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )


class KafkaNode(Node):
    """Apache Kafka from its jars: broker and controller in one process."""

    def __init__(
        self, node_id: int, port: int, home: Path, settings: Mapping[str, str], jvm: tuple[str, ...], controller: int
    ) -> None:
        super().__init__(node_id, port, home)
        own = node_settings(node_id, port, controller, str(self.data))
        self.java, self.properties = prepare_node(home, own | dict(settings), jvm)

    def format(self) -> None:
        format_storage(self.java, self.properties)

    def launch(self) -> None:
        self._ended()
        self.process = start_node(self.java, self.properties, self.home / "log")


class Cluster:
    """Several brokers for the length of a `with` block."""

    name: ClassVar[str] = ""

    def __init__(self, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.settings = {**SAFE, **(settings or {})}
        self.count = brokers
        self.nodes: dict[int, Node] = {}
        self.home = Path()
        self.ready_after_s = 0.0

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix=f"{self.name}-cluster-"))
        try:
            self.nodes = {node.id: node for node in self.make_nodes()}
            started = time.monotonic()
            for node in self.nodes.values():
                node.launch()
            self.await_ready()
            self.ready_after_s = time.monotonic() - started
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def make_nodes(self) -> Iterable[Node]:
        raise NotImplementedError

    def close(self) -> None:
        """Ends all processes at once and removes their files."""
        for node in self.nodes.values():
            if node.process is not None:
                node.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def bootstrap(self) -> str:
        """The value for `bootstrap.servers`."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def await_ready(self, nodes: Sequence[Node] | None = None) -> None:
        """Waits until these brokers (all that answer) serve, and each knows of all that run."""
        waiting = list(nodes or [node for node in self.nodes.values() if node.answers])
        known = sum(node.answers for node in self.nodes.values())

        def are_ready() -> bool:
            for node in list(waiting):
                if not node.is_running:
                    raise RuntimeError(f"broker {node.id} ended while starting:\n{node.log[-4000:]}")
                if answers_metadata(node.host, node.port, brokers=known):
                    waiting.remove(node)
            return not waiting

        if not until(are_ready, pause_s=0.002):
            texts = [f"broker {node.id}:\n{node.log[-3000:]}" for node in waiting]
            raise TimeoutError(f"not ready after {PATIENCE_S:.0f} s: {''.join(texts)}")

    def start(self, node_id: int) -> float:
        """Starts a broker that was killed or stopped. Returns the seconds until it serves."""
        node, started = self.nodes[node_id], time.monotonic()
        node.launch()
        self.await_ready([node])
        return time.monotonic() - started

    def restore(self) -> None:
        """Resumes paused brokers and starts those that do not run."""
        for node in self.nodes.values():
            if node.is_paused and node.is_running:
                node.resume()
            if not node.is_running:
                self.start(node.id)

    # --- questions ----------------------------------------------------------------------------------------

    def ask(self, request: Message, version: int, node_id: int | None = None, timeout_s: float = 30.0) -> Any:
        """The answer of one broker, or of the first that gives one."""
        asked = [self.nodes[node_id]] if node_id is not None else [n for n in self.nodes.values() if n.answers]
        failures: list[Exception] = []
        for node in asked:
            try:
                with RawConnection(node.bootstrap, timeout_s=timeout_s, client_id="faults") as connection:
                    return connection.ask(request, version)
            except OSError as failure:
                failures.append(failure)
        raise ConnectionError(f"no broker answered {type(request).__name__}: {failures}")

    def create_topic(
        self, name: str, partitions: int = 1, replicas: int = 3, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic and waits until all replicas are in sync."""
        wanted = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[CreateTopicsRequest.CreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()],
        )
        answer = self.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7).topics[0]
        if answer.error_code:
            raise RuntimeError(f"{name} was not created: error {answer.error_code}, {answer.error_message}")
        self.await_in_sync(name, partitions=partitions)

    def describe(self, topic: str, node_id: int | None = None) -> list[PartitionState]:
        """The partitions of a topic in order, as one broker knows them; none if it does not know the topic."""
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        (found,) = self.ask(request, 12, node_id).topics
        return sorted(
            PartitionState(p.partition_index, p.leader_id, p.leader_epoch, list(p.replica_nodes), list(p.isr_nodes))
            for p in found.partitions
        )

    def leader(self, topic: str, partition: int = 0) -> int:
        """The leader of a partition, once there is one that answers."""

        def found() -> int | None:
            states = self.describe(topic)
            leader = states[partition].leader if len(states) > partition else -1
            return leader if leader in self.nodes and self.nodes[leader].answers else None

        return self._once(found, f"leader of {topic}-{partition}")

    def coordinator(self, key: str, key_type: int = GROUP) -> int:
        """The coordinator of a group or transactional id, once there is one."""

        def found() -> int | None:
            answer = self.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 4).coordinators[0]
            return int(answer.node_id) if answer.error_code == 0 else None

        return self._once(found, f"coordinator of {key}")

    def controller(self) -> int:
        """The broker that runs the elections."""
        raise NotImplementedError

    def elect_preferred(self, topic: str, partitions: Iterable[int]) -> None:
        """Gives leadership back to the first replica of each of these partitions."""
        request: Any = API[ApiKey.ELECT_LEADERS].request
        chosen = request.TopicPartitions(topic=topic, partitions=list(partitions))
        answer = self.ask(request(election_type=0, topic_partitions=[chosen], timeout_ms=30_000), 2)
        election_not_needed = 84
        failed = [
            result
            for each in answer.replica_election_results
            for result in each.partition_result
            if result.error_code not in (0, election_not_needed)
        ]
        if answer.error_code or failed:
            raise RuntimeError(f"{topic}: no preferred election: error {answer.error_code}, {failed}")

    def await_in_sync(self, topic: str, partitions: int | None = None, timeout_s: float = PATIENCE_S) -> float:
        """Waits until all replicas of a topic are in sync, in the view of every broker. Returns the seconds."""
        started = time.monotonic()
        states: dict[int, list[PartitionState]] = {}

        def are_in_sync() -> bool:
            nonlocal states
            try:
                states = {n.id: self.describe(topic, n.id) for n in self.nodes.values() if n.answers}
            except OSError:
                return False
            return all(
                found and all(state.is_in_sync for state in found) and len(found) == (partitions or len(found))
                for found in states.values()
            )

        if not until(are_in_sync, timeout_s, pause_s=0.005):
            raise TimeoutError(f"{topic} is not in sync after {timeout_s:.0f} s: {states}")
        return time.monotonic() - started

    def _once(self, found: Callable[[], int | None], what: str) -> int:
        value = until_found(found, pause_s=0.01)
        if value is None:
            raise TimeoutError(f"there is no {what}")
        return value


class OttlaCluster(Cluster):
    name = "ottla"

    def make_nodes(self) -> Iterable[Node]:
        metadata = self.home / "metadata.sqlite"
        for node_id, port in enumerate(fixed_ports(self.count), 1):
            yield OttlaNode(node_id, port, self.home / f"broker-{node_id}", metadata, self.settings)

    def controller(self) -> int:
        def found() -> int | None:
            answer: int = self.ask(MetadataRequest(topics=[]), 12).controller_id
            return answer if answer in self.nodes and self.nodes[answer].answers else None

        return self._once(found, "controller")


class KafkaCluster(Cluster):
    name = "kafka"

    def __init__(
        self, brokers: int = 3, settings: Mapping[str, str] | None = None, *, jvm: tuple[str, ...] = QUICK_JVM
    ) -> None:
        super().__init__(brokers, settings)
        self.jvm = jvm

    def make_nodes(self) -> Iterable[Node]:
        ports = fixed_ports(2 * self.count)
        controllers = dict(enumerate(ports[self.count :], 1))
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in controllers.items())
        settings = {
            **self.settings,
            "controller.quorum.voters": voters,
            "share.coordinator.state.topic.replication.factor": str(min(3, self.count)),
            "share.coordinator.state.topic.min.isr": "1",
        }
        nodes = [
            KafkaNode(node_id, port, self.home / f"broker-{node_id}", settings, self.jvm, controllers[node_id])
            for node_id, port in enumerate(ports[: self.count], 1)
        ]
        with concurrent.futures.ThreadPoolExecutor(self.count) as threads:
            for formatted in [threads.submit(node.format) for node in nodes]:
                formatted.result()
        return nodes

    def controller(self) -> int:
        """The leader of the quorum. Metadata names any broker: each of them forwards to the controller."""
        request: Any = API[ApiKey.DESCRIBE_QUORUM].request
        topic = request.TopicData(
            topic_name="__cluster_metadata", partitions=[request.PartitionData(partition_index=0)]
        )

        def found() -> int | None:
            answer = self.ask(request(topics=[topic]), 1)
            if answer.error_code or not answer.topics:
                return None
            leader: int = answer.topics[0].partitions[0].leader_id
            return leader if leader in self.nodes and self.nodes[leader].answers else None

        return self._once(found, "controller")
