"""The kills of the demo, one after the other, each between writing and committing, and the rows each left behind."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.checks import unsigned_from_text
from ottla.cli.demo.shop import ENRICHED, PLAIN
from ottla.cli.output import count
from ottla.client.blocking import Admin
from ottla.client.core.model import LATEST
from ottla.clock import monotonic
from ottla.errors import KafkaError
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.demo.view import Say

HELD_S = 60.0
"""How long to wait until one task of each output is held. Tasks on other machines cannot be held."""
BROKER_DOWN_S = 1.0


class Hold:
    """Holds one task of each output when it has written its rows: in a failpoint of the sink.

    Without it, a kill would rarely hit that moment: a batch is between writing and committing for milliseconds.
    """

    def __init__(self, directory: Path) -> None:
        self._reached = {ENRICHED: directory / "held-exactly-once", PLAIN: directory / "held-at-least-once"}
        self.release()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Within this block, drivers and their workers are started with the failpoints."""
        from ottla.spark.sink.failpoints import VARIABLE

        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = ",".join(
            f"{place}@{topic}:stop:{self._reached[topic]}"
            for place, topic in (("after-prepare", ENRICHED), ("after-store", PLAIN))
        )
        try:
            yield
        finally:
            del os.environ[VARIABLE]
            if before is not None:
                os.environ[VARIABLE] = before

    def arm(self) -> None:
        """Holds the next task of each output. Deletes the files: a failpoint whose file exists does not fire."""
        for path in self._reached.values():
            Path(f"{path}.go").unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def held(self) -> list[int]:
        """The processes of the tasks that are held: of none, one or both outputs."""
        found = (path.read_text() for path in self._reached.values() if path.exists())
        return [int(pid) for pid in found if pid]

    @property
    def is_complete(self) -> bool:
        return len(self.held()) == len(self._reached)

    def release(self) -> None:
        """Tasks that are held continue, and no other is held."""
        for path in self._reached.values():
            path.touch()
            Path(f"{path}.go").touch()


class Watch:
    """Observes the exactly-once output while a batch is being written."""

    def __init__(self, bootstrap: str, partitions: int, checkpoint: Path) -> None:
        self._admin = Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": "2000"})
        self._enriched = [TopicPartition(ENRICHED, index) for index in range(partitions)]
        self._batches = checkpoint / "enriched" / "offsets"

    def hidden(self) -> int | None:
        """Rows in open transactions: only read_uncommitted consumers see them. None if the broker does not answer."""
        try:
            return self._end("read_uncommitted") - self._end("read_committed")
        except KafkaError:
            return None

    def batch(self) -> int:
        """The batch in progress: Spark stores its offsets before it starts. -1 before the first one."""
        try:
            numbers = [unsigned_from_text(file.name) for file in self._batches.iterdir()]
            return max((number for number in numbers if number is not None), default=-1)
        except OSError:
            return -1

    def close(self) -> None:
        self._admin.close()

    def _end(self, isolation_level: str) -> int:
        found = self._admin.list_offsets(dict.fromkeys(self._enriched, LATEST), isolation_level=isolation_level)
        return sum(place.offset for place in found.values() if place is not None)


@dataclass
class Kill:
    """One kill and its outcome."""

    name: str
    action: Callable[[Sequence[int]], str | None]
    """Kills. Called with the processes that are held; returns what it killed, or None if that was not possible."""
    restart: Callable[[], str | None] = lambda: None
    """Called repeatedly after the kill. Returns a text once, when it has restarted what was killed."""
    armed_at: float | None = None
    killed_at: float | None = None
    back_after_s: float | None = None
    left: int | None = None
    """Rows of the exactly-once output in open transactions at the moment of the kill."""
    batch: int = -1
    """The batch in progress at that moment."""
    is_impossible: bool = False

    @property
    def is_over(self) -> bool:
        return self.back_after_s is not None or self.is_impossible

    def document(self) -> dict[str, Any]:
        return {
            "killed": self.name,
            "batch": self.batch,
            "left_uncommitted": self.left,
            "back_after_s": round(self.back_after_s, 1) if self.back_after_s is not None else None,
        }


class Kills:
    """Performs the kills in order: the first after the first batch, each next one after the recovery from the last."""

    def __init__(self, kills: list[Kill], hold: Hold, watch: Watch, say: "Say") -> None:
        self.kills = kills
        self._hold = hold
        self._watch = watch
        self._say = say

    @property
    def current(self) -> Kill | None:
        return next((kill for kill in self.kills if not kill.is_over), None)

    @property
    def are_over(self) -> bool:
        return self.current is None

    def on_tick(self) -> None:
        kill = self.current
        if kill is None or kill.armed_at is None:
            return
        if kill.killed_at is not None:
            text = kill.restart()
            if text is not None:
                self._say(text)
        elif self._hold.is_complete or monotonic() - kill.armed_at > HELD_S:
            self._perform(kill)

    def on_batch(self, batch: int) -> None:
        """A batch of the exactly-once output was committed."""
        kill = self.current
        if kill is not None and kill.killed_at is not None and batch >= kill.batch:
            kill.back_after_s = monotonic() - kill.killed_at
            self._say(f"recovered: batch {batch} was committed {kill.back_after_s:.1f} s after the kill", "bold green")
        self._arm()

    def give_up(self) -> None:
        """Skips the remaining kills: there is no work left to interrupt."""
        for kill in self.kills:
            if not kill.is_over:
                kill.is_impossible = True
        self._hold.release()

    def _arm(self) -> None:
        kill = self.current
        if kill is not None and kill.armed_at is None:
            kill.armed_at = monotonic()
            self._hold.arm()

    def _perform(self, kill: Kill) -> None:
        held = self._hold.held()
        kill.left, kill.batch = self._watch.hidden(), self._watch.batch()
        what = kill.action(held)
        kill.is_impossible = what is None
        if what is not None:
            kill.killed_at = monotonic()
            when = f"batch {kill.batch} is written and not committed" if held else "no batch could be held"
            self._say(f"kill -9 {what}; {when}", "bold red")
            if kill.left:
                self._say(
                    f"left behind: {count(kill.left)} rows of {ENRICHED} that only read_uncommitted consumers see"
                )
        self._hold.release()
        if what is None:
            self._arm()


# --- what is killed -------------------------------------------------------------------------------------------


def kill_workers(pids: Sequence[int]) -> str | None:
    """Kills Spark's Python workers that are held."""
    if not pids:
        return None
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    workers = "two Python workers" if len(pids) > 1 else "a Python worker"
    return f"{' '.join(map(str, pids))}: {workers} of Spark"
