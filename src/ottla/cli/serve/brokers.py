"""`ottla serve --brokers N`: OWNER of N broker processes on one host. Starts, restarts and stops them.

The brokers are forked from this process after it has imported their code: they start faster and share its memory.
Therefore nothing here may start a thread or an event loop. Each broker watches a pipe, its lifeline, whose other end
only this process holds: when it exits for any reason, all brokers stop.
"""

import contextlib
import functools
import os
import select
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from ottla.broker.one_host import broker_directory, settings_of_brokers
from ottla.cli.serve.command import run_broker, say_ready
from ottla.cli.serve.options import DEFAULT_DATA, Options
from ottla.cli.serve.systemd import notify, watchdog_interval_s
from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.log.log_directory import LOCK_FILE
from ottla.net.backoff import Backoff
from ottla.types import BROKERS_ON_HOST_MAX

RESTART_BACKOFF = Backoff(500, 30_000)
"""The delay before a broker is restarted. After repeated failures it doubles, up to the maximum."""
SETTLED_S = 60.0
"""The delay is reset for a broker that ran for this long."""
STOP_S = 60.0
"""Brokers that take longer to stop are killed."""
REPORT_BYTES_MAX = 4000
_READY, _FAILED = b"+", b"-"


@dataclass
class Child:
    """One broker process."""

    node_id: int
    settings: dict[str, str]
    pid: int = 0
    pipe: int = -1
    """Where the process reports: its address, or why it cannot start."""
    report: bytes = b""
    address: str = ""
    started_at: float = 0.0
    failures: int = 0
    start_at: float | None = 0.0
    """When to start it; None while it runs."""

    @property
    def data(self) -> str:
        return self.settings["log.dirs"]


def serve_brokers(options: Options) -> int:
    """Runs the brokers until SIGINT or SIGTERM. Returns the exit status."""
    assert options.brokers is not None
    _check_directory(options)
    _warn_of_missing(options)
    children = [Child(n, settings) for n, settings in enumerate(settings_of_brokers(options.values, options.brokers))]
    _import_broker(options)
    return Supervisor(children, options).run()


class Supervisor:
    """Runs in one thread, without an event loop: it waits for signals, reports and the next start."""

    def __init__(self, children: list[Child], options: Options) -> None:
        self._children = children
        self._options = options
        self._lifeline = os.pipe()
        self._signals = os.pipe()
        self._beat_s = watchdog_interval_s()
        self._stops = 0
        self._stopping_since: float | None = None
        self._was_ready = False
        self._failure: OttlaError | None = None

    def run(self) -> int:
        for end in self._signals:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes up `_wait`
        while True:
            if self._stops == 0:
                self._start_due()
            elif self._stopping_since is None:
                self._begin_stop()
            if self._stopping_since is not None and all(child.pid == 0 for child in self._children):
                break
            self._wait()
            self._reap()
            if self._stopping_since is not None and monotonic() - self._stopping_since > STOP_S:
                self._kill()
        if self._failure is not None:
            raise self._failure
        return 0

    # Starting

    def _start_due(self) -> None:
        now = monotonic()
        for child in self._children:
            if child.start_at is not None and child.start_at <= now:
                self._start(child)

    def _start(self, child: Child) -> None:
        child.pipe, report_to = os.pipe()
        child.report = b""
        child.start_at, child.started_at = None, monotonic()
        child.pid = os.fork()
        if child.pid == 0:
            _become_broker(child, self._options, report_to, self._lifeline[0], self._foreign_files())
        os.close(report_to)

    def _foreign_files(self) -> list[int]:
        """Files of this process that a broker must not keep open."""
        others = [other.pipe for other in self._children if other.pipe >= 0]
        return [self._lifeline[1], *self._signals, *others]

    # Waiting

    def _wait(self) -> None:
        """Until a signal or a report arrives, or a broker is due to be started."""
        poll = select.poll()
        poll.register(self._signals[0], select.POLLIN)
        if self._options.stop_with_stdin and self._stops == 0:
            poll.register(0, select.POLLIN)
        by_pipe = {child.pipe: child for child in self._children if child.pipe >= 0}
        for pipe in by_pipe:
            poll.register(pipe, select.POLLIN)
        due = [child.start_at for child in self._children if child.start_at is not None and self._stops == 0]
        if self._stopping_since is not None:
            due.append(self._stopping_since + STOP_S + 0.1)
        if self._beat_s is not None:
            notify("WATCHDOG=1")
            due.append(monotonic() + self._beat_s)
        timeout_ms = max(0.0, min(due) - monotonic()) * 1000 + 1 if due else None
        for ready, _ in poll.poll(timeout_ms):
            if ready == self._signals[0]:
                _drain(ready)
            elif ready == 0:
                self._stops += not os.read(0, 4096)
            else:
                self._read_report(by_pipe[ready])

    def _read_report(self, child: Child) -> None:
        piece = os.read(child.pipe, 65_536)
        child.report += piece
        if piece and not child.report.endswith(b"\n"):
            return
        os.close(child.pipe)
        child.pipe = -1
        if not child.report.startswith(_READY):
            return
        child.address = child.report[1:].decode().strip()
        # A broker on a free port keeps that port after a restart: clients know it.
        child.settings["listeners"] = _with_port(child.settings["listeners"], child.address)
        if self._was_ready:
            _say(f"broker {child.node_id} is back at {child.address} (process {child.pid})")
        elif all(each.address for each in self._children):
            self._was_ready = True
            if sys.stdout.isatty():
                _print_table(self._children)
            say_ready(",".join(each.address for each in self._children))

    # Ending

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.pid == pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, status: int) -> None:
        if child.pipe >= 0:
            self._read_report(child)
        child.pid = 0
        if self._stopping_since is not None or self._stops:
            return
        error = child.report[1:].decode(errors="replace").strip() if child.report.startswith(_FAILED) else ""
        if not self._was_ready:
            # Something is wrong from the start: a port in use, a setting. The user has to fix it.
            message, _, hint = (error or f"it ended with {_status_text(status)}\0see the log above").partition("\0")
            self._failure = OttlaError(f"broker {child.node_id}: {message}", hint)
            self._stops += 1
            return
        was_stopped = status == 0  # by a SIGTERM from outside, as in a rolling restart
        if was_stopped or monotonic() - child.started_at >= SETTLED_S:
            child.failures = 0
        child.failures += 1
        delay_s = RESTART_BACKOFF.delay_ms(child.failures, 0.0) / 1000
        child.start_at = monotonic() + delay_s
        reason = "was stopped" if was_stopped else error.partition("\0")[0] or f"ended with {_status_text(status)}"
        _say(f"broker {child.node_id}: {reason}; restarting it in {delay_s:g} s")

    def _on_stop(self, *_: object) -> None:
        self._stops += 1
        if self._stops > 1:
            self._kill()

    def _begin_stop(self) -> None:
        """Stops all at once: there is no broker to hand partitions over to."""
        self._stopping_since = monotonic()
        notify("STOPPING=1")
        os.close(self._lifeline[1])

    def _kill(self) -> None:
        for child in self._children:
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)


def _become_broker(child: Child, options: Options, report_to: int, lifeline: int, foreign: Iterable[int]) -> NoReturn:
    """The code of the forked process; it never returns."""

    def report(kind: bytes, text: str) -> None:
        # One line, short enough to be written atomically. It does not matter if the supervisor is gone.
        with contextlib.suppress(OSError):
            os.write(report_to, kind + " ".join(text.splitlines()).encode()[:REPORT_BYTES_MAX] + b"\n")
            os.close(report_to)

    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # A new session: otherwise Ctrl-C in a terminal would reach the brokers too. The supervisor stops them.
        os.setsid()
        os.environ.pop("NOTIFY_SOCKET", None)  # only the supervisor talks to systemd
        for descriptor in foreign:
            os.close(descriptor)
        _read_nothing()
        own = options._replace(values=child.settings, stop_with_stdin=False, brokers=None)
        try:
            status = run_broker(
                own, functools.partial(report, _READY), lifeline=lifeline, name=f"broker-{child.node_id}"
            )
        except OttlaError as error:
            report(_FAILED, f"{error.message}\0{error.hint}")
            status = 2
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(status)


def _check_directory(options: Options) -> None:
    """Rejects the directory of a single broker, which has another layout."""
    data = _data_of(options)
    if os.path.exists(f"{data}/{LOCK_FILE}"):
        raise OttlaError(
            f"{data} is the data directory of a single broker",
            f"choose another one with --data DIR, or make it broker 0 of a cluster: mv {data} {data}.old && "
            f"mkdir {data} && mv {data}.old {data}/broker-0 && mv {data}/broker-0/metadata {data}/cluster",
        )


def _data_of(options: Options) -> str:
    return (options.values.get("log.dirs") or options.values.get("log.dir") or DEFAULT_DATA).rstrip("/")


def _warn_of_missing(options: Options) -> None:
    """Warns about brokers of an earlier run with a larger N: their replicas are missing now."""
    assert options.brokers is not None
    data = _data_of(options)
    missing = [
        n
        for n in range(options.brokers, BROKERS_ON_HOST_MAX)
        if os.path.exists(f"{broker_directory(data, n)}/{LOCK_FILE}")
    ]
    if missing:
        names = ", ".join(map(str, missing))
        _say(f"found data of broker {names}, which --brokers {options.brokers} does not start")


def _import_broker(options: Options) -> None:
    """Imports what every broker uses before they are forked, so that they share its memory and start faster."""
    import gc

    import ottla.broker.broker
    from ottla.metadata.etcd.location import is_etcd

    if is_etcd(options.values.get("ottla.metadata")):
        import ottla.metadata.etcd.store
    else:
        import ottla.metadata.sqlite.store  # noqa: F401

    try:
        import uvloop  # noqa: F401
    except ImportError:
        pass
    # Otherwise the first collection in each broker would copy every page.
    gc.collect()
    gc.freeze()


def _read_nothing() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _with_port(listeners: str, address: str) -> str:
    """The first listener with the port that the broker got.

    >>> _with_port("PLAINTEXT://127.0.0.1:0", "127.0.0.1:41234")
    'PLAINTEXT://127.0.0.1:41234'
    """
    first, comma, others = listeners.partition(",")
    host, _, port = first.rpartition(":")
    return f"{host}:{address.rpartition(':')[2] if port == '0' else port}{comma}{others}"


def _print_table(children: list[Child]) -> None:
    """Prints the brokers as a table, on a terminal."""
    rows = [("broker", "address", "process", "data")]
    rows += [(str(child.node_id), child.address, str(child.pid), child.data) for child in children]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    print()
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
    settings = children[0].settings
    replicas, needed = (settings.get(name, "1") for name in ("default.replication.factor", "min.insync.replicas"))
    print(f"\nnew topics: {replicas} replicas by default, an acks=all write needs {needed} of them in sync\n")


def _say(text: str) -> None:
    print(f"ottla: {text}", file=sys.stderr, flush=True)


def _status_text(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _drain(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(pipe, 4096):
            pass
