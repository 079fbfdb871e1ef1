"""Settings of Spark's workers, which other processes do not get."""

# ruff: noqa: SLF001  (checks how a connection is found)

import contextlib
import fcntl
import os
import pickle
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("pyspark")

from ottla.spark import workers
from ottla.spark.database.sink import BatchDatabaseWriter, DatabaseDataSource, StreamDatabaseWriter
from ottla.spark.datasource import OttlaDataSource
from ottla.spark.sink.batch_writer import BatchWriter
from ottla.spark.sink.sink import StreamSink
from ottla.spark.spark_session import WORKER_START

ASK = """
import gc, sys, types
if sys.argv[1] == "worker":
    sys.modules["__main__"] = types.SimpleNamespace(__spec__=types.SimpleNamespace(name="pyspark.daemon"))
from ottla.spark.workers import freeze_loaded_objects
for request in range(1, 201):
    freeze_loaded_objects()
    print(gc.get_freeze_count())
    if request == 1:
        import ottla.client.blocking  # as the first request does
    globals()[f"kept{request}"] = [[] for _ in range(1000)]
"""


def frozen(who: str) -> list[int]:
    """How many objects are frozen at each request."""
    asked = subprocess.run([sys.executable, "-c", ASK, who], capture_output=True, text=True, check=True)
    return [int(line) for line in asked.stdout.split()]


def test_a_worker_freezes_loaded_objects_for_the_garbage_collector() -> None:
    counts = frozen("worker")
    assert counts[0] > 1000
    assert counts[1] > counts[0] + 1000, "and what the first request has loaded"
    assert counts[63] == counts[-1] > counts[62], "what later requests leave behind is collected"


def test_other_processes_keep_their_garbage_collector_unchanged() -> None:
    assert set(frozen("user")) == {0}


def test_the_process_of_a_source_connects_to_spark_before_it_imports_anything() -> None:
    """Spark waits ten seconds for the connection, and the imports may take longer on a busy machine."""
    module = "pyspark.sql.streaming.python_streaming_source_runner"
    with socket.create_server(("127.0.0.1", 0)) as spark:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([WORKER_START, *filter(None, sys.path)]),
            "PYTHON_WORKER_FACTORY_PORT": str(spark.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
        }
        command = [sys.executable, "-X", "importtime", "-m", module]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as worker:
            assert worker.stderr is not None
            connection, _ = spark.accept()
            with connection, connection.makefile("rwb") as stream:
                assert stream.read(4 + 6) == b"\0\0\0\6secret"
                # PySpark is not imported before the reply.
                stream.write(b"\0\0\0\2ok")
                stream.flush()
                assert int.from_bytes(stream.read(4), "big") == worker.pid, "PySpark uses this connection"
            imported = worker.stderr.read()
    names = [line.rpartition("|")[2].strip() for line in imported.splitlines() if "|" in line]
    connected = names.index("socket")
    assert "pyspark.util" in names[connected:], "and it is the real PySpark"
    assert not any(name.startswith(("pyspark", "ottla", "pandas")) for name in names[:connected])


def test_the_next_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.customized = True")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([WORKER_START, str(tmp_path)])}
    asked = subprocess.run(
        [sys.executable, "-c", "print(customized)"], env=environment, capture_output=True, check=True
    )
    assert asked.stdout == b"True\n"


WORKER = """
import os, pickle, socket, sys

def main(infile, outfile):
    size = int.from_bytes(infile.read(4), "big")
    if not size:
        sys.exit(1)
    pickle.loads(infile.read(size))
    os.write(2, b"unpickled\\n")
    infile.read(4)
    with socket.socket(fileno=os.dup(infile.fileno())) as connection:
        outfile.write(bytes([connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)]))
    outfile.flush()
"""


@contextlib.contextmanager
def spark_worker(folder: Path) -> Iterator[tuple[socket.socket, IO[bytes]]]:
    """A worker forked by Spark's daemon, which runs WORKER: the connection to it, and its standard error."""
    (folder / "pyspark_probe.py").write_text(WORKER)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_probe"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        port = int.from_bytes(daemon.stdout.read(4), "big")
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.recv(4, socket.MSG_WAITALL)  # the worker's process id
            connection.sendall(b"\0\0\0\6secret")
            assert connection.recv(6, socket.MSG_WAITALL) == b"\0\0\0\2ok"
            yield connection, daemon.stderr
        daemon.stdin.close()


def unacknowledged(connection: socket.socket) -> int:
    """How many bytes that were sent are not acknowledged yet."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no TCP_QUICKACK")
@pytest.mark.parametrize(
    "sent", [OttlaDataSource, StreamSink, BatchWriter, DatabaseDataSource, StreamDatabaseWriter, BatchDatabaseWriter]
)
def test_a_worker_acknowledges_a_command_at_once(tmp_path: Path, sent: type) -> None:
    """Otherwise Spark's kernel holds the rows back for 40 ms: Spark sends them separately, without TCP_NODELAY."""
    command: Any = object.__new__(sent)
    command.options = {}
    pickled = pickle.dumps(command)
    with spark_worker(tmp_path) as (connection, errors):
        for _ in range(5):  # after its first answer, the worker's kernel delays acknowledgements
            connection.sendall(len(pickled).to_bytes(4, "big") + pickled)
            assert errors.readline() == b"unpickled\n"
            assert unacknowledged(connection) == 0
            connection.sendall(b"rows")
            assert connection.recv(1) == b"\1", "the worker sets TCP_NODELAY for what it sends"


def test_with_unix_sockets_no_connection_of_somebody_else_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose connection to Spark is a Unix socket may have others over TCP, to brokers for example."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        found = workers._find_connection()
        assert found is not None, "it would be taken"
        found.close()
        monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
        assert workers._find_connection() is None
