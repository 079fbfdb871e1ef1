"""OWNER of a broker in a child process: for tests, notebooks and demos.

A child process, not a thread: a broker in a busy interpreter would stall with it. The child stops when the pipe to its
standard input closes, so it never outlives the process that started it, however that process ends.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, overload

from ottla.checks import endpoint_from_text
from ottla.child_process import child_environment
from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.types import Endpoint

if TYPE_CHECKING:
    from ottla.broker.embedded.cluster import EmbeddedCluster
    from ottla.broker.embedded.security import EmbeddedSecurity

READY = "ottla ready: "


class EmbeddedBroker:
    """A running broker. Use it in a `with` block, or call `close()`.

    >>> with ottla.Broker.embedded(settings={"num.partitions": "3"}) as broker:
    ...     consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    """

    host: str
    port: int
    data: Path
    """The data directory. A temporary one is removed when the broker is closed."""

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        listen: str = "127.0.0.1:0",
        log_level: str = "info",
        timeout: float = 60.0,
        secure: "bool | EmbeddedSecurity" = False,
        wait: bool = True,
        environment: Mapping[str, str] | None = None,
        module: str = "ottla",
    ) -> None:
        """With `wait=False`, call `wait_until_ready()` before anything else.

        `environment` is added to that of this process; `module` is run instead of `ottla`, for tests of broken brokers.
        """
        self._owns_security = secure is True
        self._security = create_security(listen) if secure is True else secure or None
        self._temporary = tempfile.TemporaryDirectory(prefix="ottla-") if data is None else None
        self.data = Path(self._temporary.name if self._temporary is not None else data)  # type: ignore[arg-type]
        self._settings = {name: setting_text(value) for name, value in (settings or {}).items()}
        self._listen = listen
        self._log_level = log_level
        self._timeout = timeout
        self._environment = dict(environment or {})
        self._module = module
        # A file, not a pipe, which would have to be drained.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = self._is_closing = False
        try:
            self._start()
            if wait:
                self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """The value for `bootstrap.servers`."""
        return str(Endpoint(self.host, self.port))

    @property
    def client_settings(self) -> dict[str, str]:
        """What a client needs to connect, including TLS and the password of a secure broker.

        >>> with ottla.Broker.embedded(secure=True) as broker:
        ...     producer = Producer({**broker.client_settings, "linger.ms": "5"})
        """
        return client_settings(self.bootstrap, self._security)

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything the broker has logged so far."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    def pause(self) -> None:
        """Suspends the process (SIGSTOP). To the others it looks like a broker that hangs."""
        os.kill(self._running().pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """Continues a paused process. Does nothing if it is not paused."""
        if self._is_paused:
            os.kill(self._running().pid, signal.SIGCONT)
            self._is_paused = False

    def stop(self) -> None:
        """Stops the broker cleanly. Its data is kept for `restart()`."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            if not self._is_closing:  # a second request would stop it in the middle of stopping
                self.resume()
                process.terminate()
            try:
                process.wait(self._timeout)
            except subprocess.TimeoutExpired:
                self._end(signal.SIGKILL)
                raise OttlaError(f"the broker did not stop within {self._timeout} s", self._last_lines()) from None
        self._end()

    def kill(self) -> None:
        """Kills the broker with SIGKILL. Its data is kept for `restart()`."""
        self._running()
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stops the broker if it runs, and starts it again on the same data and port."""
        self.stop()
        self.start()

    def start(self) -> None:
        """Starts a stopped or killed broker again, on the same data and port."""
        if self._process is not None:
            raise OttlaError("the broker is running", "Call restart() to stop it and start it again.")
        self._listen = self.bootstrap
        self._start()
        self.wait_until_ready()

    def begin_close(self) -> None:
        """Makes the broker stop without handing over its partitions, and does not wait for it; then call `close()`."""
        if self._process is not None and not self._is_closing:
            self.resume()
            self._is_closing = True
            assert self._process.stdin is not None
            self._process.stdin.close()

    def close(self) -> None:
        """Stops the broker and removes its data directory if that is a temporary one."""
        try:
            self.stop()
        finally:
            self._errors.close()
            if self._temporary is not None:
                self._temporary.cleanup()
            if self._security is not None and self._owns_security:
                self._security.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<broker at {self.bootstrap}, {'running' if self.is_running else 'stopped'}>"

    # --- the process --------------------------------------------------------------------------------------

    def _start(self) -> None:
        command = [sys.executable, "-m", self._module, "serve", "--stop-with-stdin"]
        address = self._listen if self._security is None else f"{self._security.protocol}://{self._listen}"
        command += ["--listen", address, "--data", str(self.data), "--log-level", self._log_level]
        if self._security is not None:
            command += self._security.options
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**child_environment(), **self._environment},
            # Ctrl-C in a terminal reaches every process of the group; this one must be stopped by its parent instead.
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Returns when the broker serves clients; raises OttlaError if it cannot start."""
        process = self._running()
        assert process.stdout is not None
        deadline = monotonic() + self._timeout
        line = b""
        # Not select(), which fails if the application has more than 1,024 files open.
        selector = select.poll()
        selector.register(process.stdout, select.POLLIN | select.POLLHUP)
        while not line.endswith(b"\n"):
            if not selector.poll(max(0.0, deadline - monotonic()) * 1000):
                self._end(signal.SIGKILL)
                raise OttlaError(f"the broker was not ready within {self._timeout} s", self._last_lines())
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                process.wait()
                self._end()
                raise OttlaError("the broker did not start", self._last_lines())
            line += piece
        endpoint = endpoint_from_text(line.decode().strip().removeprefix(READY))
        assert endpoint is not None, line
        self.host, self.port = endpoint

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise OttlaError("the broker is not running", "Call restart() to start it again.")
        return self._process

    def _end(self, with_signal: signal.Signals | None = None) -> None:
        process, self._process, self._is_paused = self._process, None, False
        if process is None:
            return
        if with_signal is not None and process.poll() is None:
            process.send_signal(with_signal)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _last_lines(self) -> str:
        return "; ".join(self.log.strip().splitlines()[-15:])


class Broker:
    """Starts a broker for tests, notebooks and demos.

    >>> with Broker.embedded() as broker:
    ...     producer = Producer({"bootstrap.servers": broker.bootstrap})
    """

    @overload
    @staticmethod
    def embedded(
        data: str | os.PathLike[str] | None = None,
        *,
        brokers: None = None,
        settings: Mapping[str, object] | None = None,
        listen: str = "127.0.0.1:0",
        log_level: str = "info",
        timeout: float = 60.0,
        secure: bool = False,
    ) -> EmbeddedBroker: ...

    @overload
    @staticmethod
    def embedded(
        data: str | os.PathLike[str] | None = None,
        *,
        brokers: int,
        settings: Mapping[str, object] | None = None,
        listen: str = "127.0.0.1:0",
        log_level: str = "info",
        timeout: float = 60.0,
        secure: bool = False,
    ) -> "EmbeddedCluster": ...

    @staticmethod
    def embedded(
        data: str | os.PathLike[str] | None = None,
        *,
        brokers: int | None = None,
        settings: Mapping[str, object] | None = None,
        listen: str = "127.0.0.1:0",
        log_level: str = "info",
        timeout: float = 60.0,
        secure: bool = False,
    ) -> "EmbeddedBroker | EmbeddedCluster":
        """Starts a broker in a child process. It stops when this process ends.

        `data` is the data directory (default: a temporary one, removed at the end). `settings` maps Kafka's setting
        names to values. `listen` is HOST:PORT (default: a free port of 127.0.0.1). Starting and stopping may take
        `timeout` seconds each. With `brokers`, starts a cluster of that many brokers, on consecutive ports. With
        `secure`, clients need TLS and a password: pass `broker.client_settings` to them.
        """
        if brokers is None:
            return EmbeddedBroker(
                data, settings=settings, listen=listen, log_level=log_level, timeout=timeout, secure=secure
            )
        from ottla.broker.embedded.cluster import EmbeddedCluster

        return EmbeddedCluster(
            brokers, data, settings=settings, listen=listen, log_level=log_level, timeout=timeout, secure=secure
        )


def client_settings(bootstrap: str, security: "EmbeddedSecurity | None") -> dict[str, str]:
    return {"bootstrap.servers": bootstrap} if security is None else security.client_settings(bootstrap)


def joined_logs(brokers: Sequence[EmbeddedBroker]) -> str:
    """The logs of all brokers, one after the other."""
    return "\n".join(f"--- broker {node_id}\n{broker.log}" for node_id, broker in enumerate(brokers))


def create_security(listen: str) -> "EmbeddedSecurity":
    """The certificates and the user of brokers that listen there (HOST:PORT)."""
    from ottla.broker.embedded.security import EmbeddedSecurity

    endpoint = endpoint_from_text(listen)
    return EmbeddedSecurity("" if endpoint is None else endpoint.host)


def setting_text(value: object) -> str:
    """A setting's value as text in Kafka's form: True becomes true."""
    return str(value).lower() if isinstance(value, bool) else str(value)
