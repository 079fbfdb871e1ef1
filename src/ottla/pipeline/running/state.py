"""The files of a run: its state for `ottla pipeline status`, and a lock that only one run can hold."""

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.pipeline.definition.model import Pipeline
from ottla.spark.sink.checkpoints import local_path

DIRECTORY = "_ottla"
LOCK_TIMEOUT_S = 0.5
"""How long to wait for the lock: longer than a status check holds it."""


class AlreadyRunning(OttlaError):
    """Another run holds the pipeline's lock."""


@dataclass
class QueryState:
    """The last batch of a query, and its totals since the run began."""

    id: str = ""
    batch_id: int = -1
    rows_in: int = 0
    rows_out: int | None = None
    duration_ms: int = 0
    ended_ms: int = 0
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lag: int | None = None
    watermark: str | None = None
    total_in: int = 0
    total_out: int = 0
    total_bad: int = 0
    batches: int = 0


@dataclass
class RunState:
    """The state of a run, written by its supervisor."""

    name: str
    file: str
    pid: int
    host: str
    bootstrap: str
    guarantees: Mapping[str, str]
    started_ms: int
    updated_ms: int = 0
    phase: str = "starting"
    """starting, running, restarting, stopping, stopped, ended or failed."""
    embedded_broker: bool = False
    driver_pid: int | None = None
    master: str | None = None
    restarts: int = 0
    last_failure: str | None = None
    queries: dict[str, QueryState] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "RunState":
        known = {key: value for key, value in document.items() if key in cls.__dataclass_fields__}
        known["queries"] = {name: QueryState(**value) for name, value in (document.get("queries") or {}).items()}
        return cls(**known)


class StateDirectory:
    """The directory of a pipeline's runs: next to a local checkpoint, else in the user's state directory."""

    def __init__(self, made: Pipeline) -> None:
        local = local_path(made.checkpoint)
        if local is not None:
            self.path = local / DIRECTORY
        else:
            digest = hashlib.sha256(made.checkpoint.encode()).hexdigest()[:12]
            self.path = user_state() / f"{made.name}-{digest}"
        self.run_file = self.path / "run.json"
        self.lock_file = self.path / "lock"
        self.driver_log = self.path / "driver.log"
        self.broker_data = self.path / "broker"

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[int]:
        """Holds the lock. Yields its descriptor, which the driver inherits: either of them holds the lock."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _take(descriptor):
                raise AlreadyRunning(
                    f"pipeline {name} is already running: {self._holder(descriptor)}",
                    "Stop it first, or use another checkpoint for this one.",
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
            yield descriptor
        finally:
            os.close(descriptor)

    def _holder(self, descriptor: int) -> str:
        try:
            holder = json.loads(os.pread(descriptor, 4096, 0))
            here = "" if holder["host"] == socket.gethostname() else f" on {holder['host']}"
            return f"process {holder['pid']}{here}"
        except (ValueError, KeyError, TypeError):
            return "in an unknown process"

    def is_locked(self) -> bool:
        """Whether a run, or a driver that outlived its run, is alive."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY)
        except OSError:
            return False
        try:
            # Shared, so that two concurrent status checks do not mistake each other for a run.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)

    def write(self, state: RunState) -> None:
        _replace(self.run_file, state.document())

    def read(self) -> RunState | None:
        try:
            return RunState.from_document(json.loads(self.run_file.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            return None  # of another version, or not our file


def _take(descriptor: int) -> bool:
    """Locks a file; False if a run holds the lock. A status check holds it only for a moment."""
    deadline = monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() >= deadline:
                return False
        time.sleep(0.001)


def user_state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "ottla" / "pipelines"


def remember(made: Pipeline) -> None:
    """Records the file of a pipeline of this name, so that `status NAME` finds it."""
    with contextlib.suppress(OSError):  # a convenience: an unwritable home directory is not a reason to fail
        _replace(user_state() / f"{made.name}.json", {"file": str(Path(made.file).absolute())})


def recall(name: str) -> Path | None:
    """The file of a pipeline that was run under this name."""
    try:
        return Path(json.loads((user_state() / f"{name}.json").read_text())["file"])
    except (OSError, ValueError, KeyError):
        return None


def _replace(path: Path, document: Any) -> None:
    """Readers see the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.chmod(draft, 0o644)
    os.replace(draft, path)
