"""Python imports this at startup if this directory is on its path: connects a source's process to Spark immediately.

Spark starts `python -m pyspark.sql.streaming.python_streaming_source_runner` for every stream, and gives it ten seconds
to connect back. No setting changes that. The process imports PySpark, pandas and pyarrow first, which takes half a
second of CPU time, and more than ten seconds on an overloaded machine. With the connection made here, Spark waits for
the rest as long as it takes. Any other process only runs the next sitecustomize on its path.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would take as long as the rest
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The only process that Spark starts without its daemon. If a later Spark names it differently, nothing happens."""


def connect_first() -> None:
    """Connects to Spark and authenticates, as PySpark would later, and makes PySpark use this connection."""
    port, secret = os.environ.get("PYTHON_WORKER_FACTORY_PORT"), os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if not port or not secret:
        return  # a Unix domain socket
    import socket

    host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true" else "127.0.0.1"
    connection = socket.create_connection((host, int(port)), float(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT") or 15))
    stream = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE") or 65536))
    word = secret.encode()
    stream.write(len(word).to_bytes(4, "big") + word)
    stream.flush()
    reply = stream.read(int.from_bytes(stream.read(4), "big"))

    import pyspark.util

    connect = pyspark.util.local_connect_and_auth

    def connected(conn_info: "str | int | None", auth_secret: "str | None") -> "tuple[Any, ...]":
        """The connection of this process; PySpark opens others, for example for broadcast variables."""
        if (str(conn_info), auth_secret) == (port, secret) and reply == b"ok":
            return stream, connection
        return connect(conn_info, auth_secret)

    pyspark.util.local_connect_and_auth = connected


def run_next_sitecustomize() -> None:
    """Runs the sitecustomize that Python would have found without this directory."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec(__name__, [path for path in sys.path if os.path.abspath(path) != HERE])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if sys.orig_argv[-2:] == ["-m", RUNNER]:
    connect_first()
run_next_sitecustomize()
