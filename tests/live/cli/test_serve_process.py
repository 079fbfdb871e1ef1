"""`ottla serve` as a process: the ready line, clean shutdown, and errors in one line."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from ottla.protocol.api import ApiKey
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.records.record_batch import build_batch, iter_batches, read_records
from tests.support.ports import fixed_port
from tests.support.waiting import PATIENCE_S

SOURCE = str(Path(__file__).parents[3] / "src")


def start(*arguments: str, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ottla", "serve", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


@contextmanager
def serving(*arguments: str, stdin: int | None = subprocess.DEVNULL) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    process = start("--listen", "127.0.0.1:0", *arguments, stdin=stdin)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        assert readable, "no ready line"
        line = process.stdout.readline().decode()
        assert line.startswith("ottla ready: 127.0.0.1:"), line + process.stderr.read().decode()
        yield process, int(line.rpartition(":")[2])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def failed_start(*arguments: str) -> str:
    """The one line that a failed start prints."""
    process = start(*arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    text = err.decode()
    assert process.returncode == 2, text
    assert out == b""
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if line.startswith("ottla: ")]
    assert len(lines) == 1, text
    assert text.endswith(lines[0] + "\n"), text
    return lines[0]


class Client:
    """A client over a plain socket. All are closed after each test."""

    opened: ClassVar[list[socket.socket]] = []

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.opened.append(self.socket)

    def send(self, request: object, version: int) -> None:
        key: int = request.api_key  # type: ignore[attr-defined]
        self.socket.sendall(encode_request(key, version, 1, "test", request))  # type: ignore[arg-type]

    def receive(self, key: ApiKey, version: int) -> object:
        size = int.from_bytes(self._read(4), "big")
        return decode_response(key, version, self._read(size))[1]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "the connection was closed"
            data += piece
        return data

    def produce(self, topic: str, value: bytes) -> int:
        batch = build_batch([(1_700_000_000_000, None, value, ())])
        partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
        self.send(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), 9)
        response = self.receive(ApiKey.PRODUCE, 9)
        assert isinstance(response, ProduceResponse)
        (answer,) = response.responses[0].partition_responses
        assert answer.error_code == 0
        return answer.base_offset

    def fetch_all(self, topic: str) -> list[bytes | None]:
        found: list[bytes | None] = []
        self.metadata(topic)
        while True:
            partition = FetchRequest.FetchPartition(partition=0, fetch_offset=len(found), partition_max_bytes=1 << 20)
            topics = [FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
            self.send(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 11)
            response = self.receive(ApiKey.FETCH, 11)
            assert isinstance(response, FetchResponse)
            (data,) = response.responses[0].partitions
            assert data.error_code == 0
            if not data.records:
                return found
            for position, header in iter_batches(data.records):
                found += [record.value for record in read_records(data.records, position, header)]

    def create(self, topic: str) -> None:
        new = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        self.send(CreateTopicsRequest(topics=[new], timeout_ms=5000), 5)
        response = self.receive(ApiKey.CREATE_TOPICS, 5)
        assert isinstance(response, CreateTopicsResponse)
        assert response.topics[0].error_code == 0

    def metadata(self, topic: str) -> MetadataResponse:
        self.send(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]), 9)
        response = self.receive(ApiKey.METADATA, 9)
        assert isinstance(response, MetadataResponse)
        return response


@pytest.fixture(autouse=True)
def close_clients() -> Iterator[None]:
    yield
    while Client.opened:
        Client.opened.pop().close()


def wait_for(port: int) -> Client:
    """Connects to a broker that may still be starting."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return Client(port)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_the_broker_prints_its_address_when_it_is_ready(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path)) as (_, port):
        response = Client(port).metadata("orders")
        assert [(broker.host, broker.port) for broker in response.brokers] == [("127.0.0.1", port)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_broker_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with serving("--data", str(tmp_path)) as (process, port):
        Client(port).metadata("orders")
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err.decode()
        assert out == b""
        assert b"Traceback" not in err
    # The data directory can be used again.
    with serving("--data", str(tmp_path)) as (_, port):
        assert [topic.name for topic in Client(port).metadata("orders").topics] == ["orders"]


def test_a_waiting_fetch_is_answered_at_shutdown(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path)) as (process, port):
        client = Client(port)
        client.create("orders")
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic = FetchRequest.FetchTopic(topic="orders", partitions=[partition])
        client.send(FetchRequest(max_wait_ms=600_000, min_bytes=1, max_bytes=1000, topics=[topic]), 11)
        for _ in range(3):  # after later requests were served, this one has arrived
            Client(port).metadata("orders")
        process.terminate()
        response = client.receive(ApiKey.FETCH, 11)
        assert isinstance(response, FetchResponse)
        assert response.error_code == 0
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_a_signal_under_load_loses_no_acknowledged_record(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    with serving("--data", str(tmp_path)) as (process, port):
        client = Client(port)
        client.create("orders")
        with pytest.raises((AssertionError, ConnectionError)):  # noqa: PT012 - whichever request is cut off
            for number in range(100_000):
                acknowledged.append(client.produce("orders", b"%d" % number))
                if number == 200:
                    process.terminate()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert acknowledged == list(range(len(acknowledged)))
    assert len(acknowledged) > 200
    with serving("--data", str(tmp_path)) as (_, port):
        values = Client(port).fetch_all("orders")
        # The last record may have been appended without its response reaching the client.
        assert len(acknowledged) <= len(values) <= len(acknowledged) + 1
        assert values == [b"%d" % number for number in range(len(values))]


def test_the_broker_serves_with_closed_standard_output(tmp_path: Path) -> None:
    port = fixed_port()
    process = start("--listen", f"127.0.0.1:{port}", "--data", str(tmp_path))
    assert process.stdout is not None
    process.stdout.close()
    try:
        wait_for(port).metadata("orders")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_the_broker_runs_without_standard_files(tmp_path: Path) -> None:
    port = fixed_port()
    command = f"exec {sys.executable} -m ottla serve --listen 127.0.0.1:{port} --data {tmp_path} 0<&- 1>&- 2>&-"
    process = subprocess.Popen(["sh", "-c", command], env={**os.environ, "PYTHONPATH": SOURCE})
    try:
        wait_for(port).metadata("orders")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_stop_with_stdin_stops_the_broker_when_stdin_closes(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path), "--stop-with-stdin", stdin=subprocess.PIPE) as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_stop_with_stdin_needs_a_pipe(tmp_path: Path) -> None:
    line = failed_start("--listen", "127.0.0.1:0", "--data", str(tmp_path), "--stop-with-stdin")
    assert "needs a pipe as standard input" in line


def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = failed_start("--listen", address, "--data", str(tmp_path))
        assert line.startswith(f"ottla: cannot listen on {address}: the port is in use (")
    # The failed start left nothing behind.
    with serving("--data", str(tmp_path)) as (_, port):
        Client(port).metadata("orders")


def test_a_data_directory_in_use_is_reported_with_the_process_id(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path)) as (process, port):
        line = failed_start("--listen", "127.0.0.1:0", "--data", str(tmp_path))
        assert str(tmp_path) in line
        assert str(process.pid) in line
        Client(port).metadata("orders")


def test_an_impossible_data_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    line = failed_start("--listen", "127.0.0.1:0", "--data", str(tmp_path / "file"))
    assert str(tmp_path / "file") in line
    line = failed_start("--listen", "127.0.0.1:0", "--data", "/proc/nowhere")
    assert "/proc/nowhere" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "num.partition=3"], "Unknown setting num.partition"),
        (["--set", "num.partitions=many"], "Invalid value many for configuration num.partitions"),
        (["--set", "num.partitions=0"], "Invalid value 0 for configuration num.partitions"),
        (["--set", "listeners=nonsense"], "Invalid value nonsense for configuration listeners"),
        (["--insecure", "--listen", "no.such.host.invalid:0"], "cannot listen on no.such.host.invalid:0"),
        (["--insecure", "--listen", "203.0.113.7:0"], "cannot listen on 203.0.113.7:0"),
        (["--metrics", "nonsense"], "Invalid value nonsense for configuration ottla.metrics.listen"),
    ],
)
def test_an_invalid_setting_is_reported_in_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    listen = [] if "--listen" in arguments or "listeners" in arguments[1] else ["--listen", "127.0.0.1:0"]
    assert message in failed_start("--data", str(tmp_path / "d"), *listen, *arguments)


def test_metrics_are_served_for_prometheus(tmp_path: Path) -> None:
    metrics_port = fixed_port()
    with serving("--data", str(tmp_path), "--metrics", f"127.0.0.1:{metrics_port}") as (_, port):
        client = Client(port)
        client.create("orders")
        client.metadata("orders")

        def http(request: bytes) -> str:
            with socket.create_connection(("127.0.0.1", metrics_port), timeout=PATIENCE_S) as connection:
                connection.sendall(request)
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

        text = http(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert text.startswith("HTTP/1.1 200 OK\r\n")
        assert 'ottla_requests_total{api="Metadata",version="9"} 1.0' in text
        assert 'ottla_request_seconds_count{api="Metadata"} 1.0' in text
        assert "ottla_connections 1.0" in text
        assert "ottla_partitions 1.0" in text
        assert "ottla_event_loop_longest_step_seconds 0." in text
        assert "ottla_event_loop_slow_steps_total " in text
        assert 'ottla_log_end_offset{partition="0",topic="orders"} 0.0' in text
        assert http(b"GET /elsewhere HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 404")
        assert http(b"POST /metrics HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 405")
        assert http(b"G" * 20_000).startswith("HTTP/1.1 431")


def test_serve_imports_no_library_of_other_commands() -> None:
    """Keeps the start-up fast."""
    code = "import sys, ottla.cli.serve.command, ottla.broker.broker; print(' '.join(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, "PYTHONPATH": SOURCE}, check=True
    )
    loaded = set(out.stdout.decode().split())
    assert not loaded & {"typer", "click", "rich", "pyarrow", "numpy", "prometheus_client", "argparse", "http", "email"}


def test_a_hook_asks_the_broker_whether_it_may_be_stopped(tmp_path: Path) -> None:
    port = fixed_port()
    words = [sys.executable, "-m", "ottla", "cluster", "wait-in-sync", "--endpoint"]

    def ask(*more: str) -> tuple[int, str, str]:
        asked = subprocess.run(
            [*words, *more], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
        )
        return asked.returncode, asked.stdout, asked.stderr

    with serving("--data", str(tmp_path), "--metrics", f"127.0.0.1:{port}"):
        assert ask(f"http://127.0.0.1:{port}", "--timeout", "300") == (0, "safe to stop\n", "")
        status, out, _ = ask(f"http://127.0.0.1:{port}/", "--json", "--timeout", "300")
        assert (status, '"ok": true' in out) == (0, True)
    status, _, error = ask(f"http://127.0.0.1:{port}", "--timeout", "0.2")
    assert (status, "Connection refused" in error) == (1, True)
    status, _, error = ask(f"127.0.0.1:{port}")
    assert (status, "is not a URL (write http://HOST:PORT" in error) == (2, True)
