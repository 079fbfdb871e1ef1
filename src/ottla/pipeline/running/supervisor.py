"""OWNER of the driver's process: starts it, reads its events, restarts it after a failure, and stops it gracefully.

The driver is a child process in its own session, so Ctrl-C reaches only the supervisor. A driver that dies is
restarted; thanks to the checkpoint and the sinks, no rows are lost or duplicated.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from ottla.child_process import child_environment
from ottla.clock import monotonic, system_clock
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.running.failures import Failure
from ottla.pipeline.running.lag import LagWatch
from ottla.pipeline.running.progress import Batch
from ottla.pipeline.running.restarts import Restarts
from ottla.pipeline.running.state import QueryState, RunState, StateDirectory

TICK_S = 0.2
HEARTBEAT_S = 2.0
JVM_EXIT_TIMEOUT_S = 10.0
LOG_LIMIT_BYTES = 20_000_000
Event = dict[str, Any]


class Driver:
    """One child process, from its start to its end."""

    def __init__(self, job: Mapping[str, Any], log: Path, lock: int | None = None) -> None:
        read_end, write_end = os.pipe()
        inherited = (write_end,) if lock is None else (write_end, lock)
        with open_log(log) as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ottla.pipeline.running.driver", str(write_end)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=inherited,
                start_new_session=True,
                env=child_environment(),
            )
        os.close(write_end)
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(read_end,), name="driver-events", daemon=True).start()
        self._say(json.dumps(job))

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "r", encoding="utf-8") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # the incomplete last line of a driver that was killed
                    self.events.put(json.loads(line))
        self.events.put(None)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        """Makes the driver finish its batch and exit."""
        self._say("stop")

    def kill(self) -> None:
        """Kills the driver and its JVM, as a crash of the machine would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> int:
        """Waits until the driver has ended and returns its exit status."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        status = self.process.wait()
        # The JVM cleans up and exits after its Python process. If it does not, it would still use the checkpoint.
        deadline = monotonic() + JVM_EXIT_TIMEOUT_S
        while self._has_processes() and monotonic() < deadline:
            threading.Event().wait(TICK_S / 4)
        self.kill()
        return status

    def _has_processes(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class Supervisor:
    """Runs a pipeline until it ends, is stopped, or fails for good."""

    def __init__(
        self,
        made: Pipeline,
        state: StateDirectory,
        *,
        bootstrap: str,
        job: Mapping[str, Any],
        max_restarts: int = 10,
        embedded_broker: bool = False,
        on_event: Callable[[Event, RunState], None] | None = None,
        on_tick: Callable[[RunState], None] | None = None,
    ) -> None:
        self.made = made
        self.state = state
        self.job = {**job, "task": "run", "bootstrap": bootstrap}
        self.restarts = Restarts(max_restarts)
        self.run_state = RunState(
            name=made.name,
            file=str(Path(made.file).absolute()),
            pid=os.getpid(),
            host=os.uname().nodename,
            bootstrap=bootstrap,
            guarantees={name: output.guarantee for name, output in made.outputs.items()},
            started_ms=system_clock(),
            embedded_broker=embedded_broker,
        )
        self._on_event = on_event or (lambda event, state: None)
        self._on_tick = on_tick or (lambda state: None)
        self._stops = 0
        self._driver: Driver | None = None
        self._failure: Failure | None = None
        self._wakeup = threading.Event()
        self._lag = LagWatch(bootstrap, made.kafka)
        self._written_at = -HEARTBEAT_S

    # --- from outside -------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """The first call finishes the batch, then stops. The second call stops immediately."""
        self._stops += 1
        self._wakeup.set()

    @property
    def driver(self) -> Driver | None:
        return self._driver

    # --- the run ------------------------------------------------------------------------------------------

    def run(self, lock: int | None = None) -> Failure | None:
        """Returns None if the pipeline ended or was stopped, else the failure."""
        try:
            return self._run(lock)
        finally:
            self._lag.close()
            self._write()

    def _run(self, lock: int | None) -> Failure | None:
        while True:
            started_at = monotonic()
            ended = self._run_driver(lock)
            # After one stop, a failure of the last batch is reported. After two, the driver was killed on purpose.
            if ended or self._stops > 1:
                self._enter("stopped" if self._stops else "ended")
                return None
            failure = self._failure or Failure(
                "the driver died without an error", f"Its log is {self.state.driver_log}."
            )
            self.run_state.last_failure = failure.cause
            delay = None if self._stops else self.restarts.delay_after(failure, monotonic() - started_at)
            if delay is None:
                self._enter("failed", cause=failure.cause)
                return failure
            self.run_state.restarts = self.restarts.total
            self._enter("restarting", cause=failure.cause, delay_s=delay, restarts=self.restarts.total)
            if self._pause(delay):
                self._enter("stopped")
                return None

    def _run_driver(self, lock: int | None) -> bool:
        """Runs one driver. True if it exited without a failure."""
        self._failure = None
        ended = False
        driver = self._driver = Driver(self.job, self.state.driver_log, lock)
        self.run_state.driver_pid = driver.process.pid
        self._enter("starting")
        handled = 0
        try:
            while True:
                event = self._next_event(driver)
                if event is None:
                    break
                ended = ended or event.get("event") == "ended"
                if event:
                    self._take(event)
                if self._stops > handled:
                    handled += 1
                    if handled == 1:
                        driver.stop()
                        self._enter("stopping")
                    else:
                        driver.kill()
        finally:
            if sys.exc_info()[0] is not None:
                driver.kill()
            status = driver.close()
            self._driver = None
            self.run_state.driver_pid = None
        if not ended and self._failure is None:
            how = f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"exit status {status}"
            self._failure = Failure(f"the driver ended with {how}", f"Its log is {self.state.driver_log}.")
        return ended

    def _next_event(self, driver: Driver) -> Event | None:
        """The driver's next event; {} after a tick without one; None at its end."""
        try:
            event = driver.events.get(timeout=TICK_S)
        except queue.Empty:
            event = {}
        self._tick()
        return event

    def _take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "spark":
            self.run_state.master = event["master"]
        elif kind == "started":
            for name, query_id in event["queries"].items():
                self.run_state.queries.setdefault(name, QueryState()).id = query_id
            self.run_state.phase = "running"
            self._write()
        elif kind == "batch":
            self._take_batch(Batch.from_document(event["batch"]))
        elif kind == "failed":
            self._failure = Failure(event["cause"], event["hint"], event["retriable"], event["query"])
        self._on_event(event, self.run_state)

    def _take_batch(self, batch: Batch) -> None:
        self.restarts.on_batch(batch.query)
        query = self.run_state.queries.setdefault(batch.query, QueryState())
        query.batch_id, query.duration_ms, query.ended_ms = batch.batch_id, batch.duration_ms, batch.ended_ms
        query.rows_in, query.rows_out, query.watermark = batch.rows_in, batch.rows_out, batch.watermark
        query.positions = {**query.positions, **batch.positions}
        query.total_in += batch.rows_in
        query.total_out += batch.rows_out or 0
        query.total_bad += sum(batch.bad.values())
        query.batches += 1

    def _enter(self, phase: str, **more: Any) -> None:
        self.run_state.phase = phase
        self._on_event({"event": phase, **more}, self.run_state)
        self._write()

    def _tick(self) -> None:
        for name, query in self.run_state.queries.items():
            self._lag.follow(name, query.positions)
            query.lag = self._lag.lag_of(name)
        self._on_tick(self.run_state)
        if monotonic() - self._written_at >= HEARTBEAT_S:
            self._write()

    def _pause(self, seconds: float) -> bool:
        """Waits; True if a stop was requested meanwhile."""
        until = monotonic() + seconds
        while not self._stops and monotonic() < until:
            self._wakeup.wait(TICK_S)
            self._tick()
        return bool(self._stops)

    def _write(self) -> None:
        self._written_at = monotonic()
        self.run_state.updated_ms = system_clock()
        self.state.write(self.run_state)


def open_log(path: Path) -> IO[bytes]:
    """The driver's log, opened for appending. A log that is too long is rotated once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            os.replace(path, path.with_suffix(".log.old"))
    return open(path, "ab")
