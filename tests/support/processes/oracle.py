"""A real Apache Kafka 4.x, started from its published jars, to compare with: one node, KRaft, loopback.

`RealKafka` owns one broker process for the length of a `with` block. `shared_kafka` gives all workers of one
test run the same broker: the first to ask starts a keeper process, which ends Kafka when the run ends.
"""

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.support.ports import fixed_port, fixed_ports
from tests.support.waiting import PATIENCE_S, until

QUICK_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For tests: little memory, quick to start."""

PRODUCTION_JVM = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""For benchmarks: what Kafka's own start script passes."""

LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""

CLUSTER_ID = "T3R0bGFPcmFjbGVJZDAwMA"


def extras_directory() -> Path:
    """Where `./run setup-extras` puts the optional parts: `.extras` of the checkout, or $OTTLA_EXTRAS."""
    named = os.environ.get("OTTLA_EXTRAS")
    return Path(named) if named else Path(__file__).resolve().parents[3] / ".extras"


def oracle_available() -> str | None:
    """None when a real Kafka can be started, else the reason why not, fit for a skip message."""
    if not any((extras_directory() / "kafka").glob("kafka_2.13-4.*.jar")):
        return "Apache Kafka's jars are not there (./run setup-extras fetches them)"
    return java_missing()


@functools.cache
def java_missing() -> str | None:
    """None when a Java that runs Kafka's jars is on the path, else what is wrong."""
    if shutil.which("java") is None:
        return "there is no java on the path"
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    # openjdk version "17.0.15" 2025-04-15; before Java 9 it was "1.8.0".
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None or int(found[1]) < 17:
        return "the java on the path is older than 17"
    return None


def kafka_version() -> str:
    """The version of the jars, for reports."""
    found = sorted((extras_directory() / "kafka").glob("kafka_2.13-*.jar"))
    return found[-1].stem.removeprefix("kafka_2.13-") if found else ""


def class_path() -> str:
    return f"{extras_directory() / 'kafka'}/*"


def node_settings(node_id: int, port: int, controller_port: int, data: str) -> dict[str, str]:
    """The settings of a node that is broker and controller, on loopback. The quorum's voters are missing."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "listeners": f"BROKER://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"BROKER://127.0.0.1:{port}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
    }


def prepare_node(home: Path, settings: Mapping[str, str], jvm: tuple[str, ...]) -> tuple[list[str], Path]:
    """Writes a node's files: (the command that starts Java, the file with the settings)."""
    properties = home / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    log4j = home / "log4j2.properties"
    log4j.write_text(LOG4J)
    return ["java", *jvm, f"-Dlog4j2.configurationFile={log4j}", "-cp", class_path()], properties


def format_storage(java: list[str], properties: Path, extra: Sequence[str] = ()) -> None:
    """Prepares the data directory of a node. `extra` are options of the tool, such as --add-scram."""
    tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", CLUSTER_ID, "-c", str(properties)]
    done = subprocess.run(
        [*java, *tool, *extra],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"formatting Kafka's storage failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def start_node(java: list[str], properties: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Starts the process of a node; it prints to the end of `log`."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Its own session, as Ottla's embedded broker has: Ctrl-C is for the parent, and a kernel that shares the
            # processor among sessions treats both brokers alike.
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


class RealKafka:
    """One Apache Kafka broker for the length of a `with` block.

    `bootstrap` is its address, `pid` its process. `overrides` are broker settings under Kafka's names. `listeners` are
    more listeners, name to security protocol; `addresses` has where they are. `format_options` go to kafka-storage.
    """

    def __init__(
        self,
        overrides: Mapping[str, str] | None = None,
        *,
        jvm: tuple[str, ...] = QUICK_JVM,
        data: str | None = None,
        listeners: Mapping[str, str] | None = None,
        format_options: Sequence[str] = (),
    ) -> None:
        self.overrides = dict(overrides or {})
        self.listeners = dict(listeners or {})
        self.format_options = format_options
        self.addresses: dict[str, str] = {}
        self.jvm = jvm
        self.data = data
        self.bootstrap = ""
        self.pid = 0
        self.ready_after_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._home = ""
        self._ports: list[int] | None = None
        self._controller_port = 0

    def __enter__(self) -> Self:
        reason = oracle_available()
        if reason is not None:
            raise RuntimeError(f"a real Kafka cannot be started: {reason}")
        self._home = tempfile.mkdtemp(prefix="ottla-oracle-")
        try:
            # Another process may take a port between the probe and Kafka's bind: then try other ports.
            for attempt in range(3):
                try:
                    self._start()
                    return self
                except _PortTaken:
                    if attempt == 2:
                        raise
            raise AssertionError("unreachable")
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _start(self) -> None:
        data = self.data or f"{self._home}/data"
        port, controller_port = self._ports or fixed_ports(2)
        settings = {
            **node_settings(1, port, controller_port, data),
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.overrides,
        }
        self._add_listeners(settings)
        java, properties = prepare_node(Path(self._home), settings, self.jvm)
        format_storage(java, properties, self.format_options)
        output_path = Path(self._home, "kafka.log")
        output_path.unlink(missing_ok=True)
        started = time.monotonic()
        self._process = start_node(java, properties, output_path)
        self.pid = self._process.pid
        self.bootstrap = f"127.0.0.1:{port}"
        self._controller_port = controller_port
        process = self._process

        def is_ready() -> bool:
            if process.poll() is not None:
                text = output_path.read_text(errors="replace")
                if "Address already in use" in text:
                    raise _PortTaken(text[-2000:])
                raise RuntimeError(f"Kafka ended while starting:\n{text[-4000:]}")
            return answers_metadata("127.0.0.1", port)

        if not until(is_ready):
            raise TimeoutError(f"Kafka was not ready after {PATIENCE_S:.0f} s:\n{self.log()[-4000:]}")
        self.ready_after_s = time.monotonic() - started

    def _add_listeners(self, settings: dict[str, str]) -> None:
        for name, protocol in self.listeners.items():
            address = self.addresses[name] = f"localhost:{fixed_port()}"
            settings["listeners"] += f",{name}://{address}"
            settings["advertised.listeners"] += f",{name}://{address}"
            settings["listener.security.protocol.map"] += f",{name}:{protocol}"

    def log(self) -> str:
        """What Kafka printed so far."""
        path = Path(self._home, "kafka.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self) -> None:
        """Ends Kafka at once, as a power cut would; its data stays for `restart()`."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def restart(self) -> None:
        """Starts a killed Kafka again, on the same data and ports."""
        port, controller_port = self.bootstrap.rpartition(":")[2], self._controller_port
        self._ports = [int(port), controller_port]
        self._start()

    def stop(self) -> None:
        """Ends Kafka at once (its data is not kept, unless `data` was given) and removes its files."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            if self.data is not None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_S)
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE_S)
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = ""


class _PortTaken(RuntimeError):
    """A port found free was taken before Kafka could bind it."""


def die_with_parent() -> None:
    """Runs in the child before exec: should the thread that started it end, the broker is killed too (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def answers_metadata(host: str, port: int, timeout_s: float = 15.0, *, brokers: int = 1) -> bool:
    """Whether a broker at this address answers Metadata (v1, no topics) with at least so many brokers.

    Written by hand: it times starts, so it must be light, and it judges brokers, so it trusts no codec of ours.
    """
    request = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = b""
            while len(answer) < 12:
                received = connection.recv(4096)
                if not received:
                    return False
                answer += received
    except OSError:
        return False
    broker_count: int = struct.unpack_from(">i", answer, 8)[0]
    return broker_count >= brokers


class Target(NamedTuple):
    """A broker under test, ours or the oracle."""

    name: str
    bootstrap: str
    pid: int


class SharedKafka(NamedTuple):
    """The broker that all workers of one test run share."""

    bootstrap: str
    pid: int


def shared_kafka(directory: Path, owner_pid: int) -> SharedKafka:
    """One Kafka per test run: `directory` names the run, and Kafka ends when the process `owner_pid` does.

    The first caller starts a keeper process; the others wait on its lock and read the address it wrote.
    """
    address = kept(directory, "oracle", owner_pid)
    return SharedKafka(address["bootstrap"], address["pid"])


def kept(directory: Path, module: str, owner_pid: int) -> dict[str, Any]:
    """What a keeper process published. `module` of this package starts it when it is run."""
    address_file = directory / f"{module}.json"
    with open(directory / f"{module}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address_file.exists():
            _start_keeper(address_file, owner_pid, module)
        address: dict[str, Any] = json.loads(address_file.read_text())
    if "failure" in address:
        raise RuntimeError(address["failure"])
    return address


_keepers: list[subprocess.Popen[bytes]] = []
"""The keeper outlives this worker on purpose; without a reference, Popen would warn that it still runs."""


def _start_keeper(address_file: Path, owner_pid: int, module: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    keeper = subprocess.Popen(
        [sys.executable, "-m", f"tests.support.processes.{module}", str(address_file), str(owner_pid)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    _keepers.append(keeper)
    until(lambda: address_file.exists() or keeper.poll() is not None, 3 * PATIENCE_S)
    if not address_file.exists():
        raise RuntimeError("the process that keeps Kafka ended, or hangs, before Kafka was ready")


def _publish(address_file: Path, content: Mapping[str, object]) -> None:
    temporary = address_file.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.rename(address_file)


@contextlib.contextmanager
def _watching(pid: int) -> Iterator[int]:
    """A file descriptor that becomes readable when the process ends."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


SHARED_OVERRIDES = {
    # Scripts write records with fixed, old timestamps; retention must not remove them in the middle of a run.
    "log.initial.task.delay.ms": "3600000",
    # A test waits for compaction.
    "log.cleaner.backoff.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    # Tests wait until a transaction that takes too long is aborted. Default: 10 s.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


def keep(address_file: Path, owner_pid: int, start: Callable[[], RealKafka], **more: object) -> None:
    """The keeper: starts Kafka, writes its address and `more`, and stays until the owner is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(_watching(owner_pid))
        try:
            kafka = stack.enter_context(start())
        except Exception as failure:
            _publish(address_file, {"failure": str(failure)})
            return
        broker = stack.enter_context(_watching(kafka.pid))
        published = {"bootstrap": kafka.bootstrap, "pid": kafka.pid, "keeper": os.getpid(), **kafka.addresses, **more}
        _publish(address_file, published)
        select.select([owner, broker], [], [])


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]), lambda: RealKafka(SHARED_OVERRIDES))
