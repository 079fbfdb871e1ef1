"""The kills of the demo, one after the other, each in the middle of a batch, and what each of them left behind."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ottla.cli.demo.shop import ENRICHED, PLAIN
from ottla.cli.output import count
from ottla.client.blocking import Admin
from ottla.client.core.model import LATEST
from ottla.clock import monotonic
from ottla.errors import KafkaError
from ottla.types import TopicPartition

BOTH_S, ARMED_S = 10.0, 60.0
"""How long to wait for a batch to kill something in: one in which both outputs are being written, and any."""
LAST_CHANCE = 0.9
"""From this fraction of the orders on, there may be no further batch."""
BROKER_AWAY_S = 1.0
DAEMON = "pyspark.daemon"


class Say(Protocol):
    """Prints an event."""

    def __call__(self, text: str, style: str = "default", /) -> None: ...


class Written(NamedTuple):
    """Rows in the topics that no finished batch contains."""

    hidden: int
    """In open transactions of the exactly-once output: only read_uncommitted consumers see them."""
    visible: int
    """Of the at-least-once output: everybody sees them, and a repeated batch writes them again."""


class Watch:
    """Looks at the output topics while batches are being written."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._admin = Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": "2000"})
        self._enriched = [TopicPartition(ENRICHED, index) for index in range(partitions)]
        self._plain = [TopicPartition(PLAIN, index) for index in range(partitions)]
        self._finished = 0

    def look(self) -> Written | None:
        """None if the broker does not answer."""
        try:
            hidden = self._end(self._enriched) - self._end(self._enriched, "read_committed")
            return Written(hidden, self._end(self._plain) - self._finished)
        except KafkaError:
            return None

    def on_plain_batch(self) -> None:
        """The at-least-once query has finished a batch: what is in its topic now is not written again."""
        try:
            self._finished = self._end(self._plain)
        except KafkaError:
            return

    def close(self) -> None:
        self._admin.close()

    def _end(self, partitions: list[TopicPartition], isolation_level: str = "read_uncommitted") -> int:
        found = self._admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=isolation_level)
        return sum(place.offset for place in found.values() if place is not None)


@dataclass
class Kill:
    """One kill: when it is due, and what became of it."""

    name: str
    at: float
    """The fraction of the orders after which it is due."""
    strike: Callable[[], str | None]
    """Kills, and returns what it killed; None if that was not possible."""
    raise_again: Callable[[], str | None] = lambda: None
    """Called every moment after the kill; returns a text once, when it has started again what was killed."""
    armed_at: float | None = None
    killed_at: float | None = None
    back_after_s: float | None = None
    left: Written | None = None
    is_impossible: bool = False

    @property
    def is_over(self) -> bool:
        return self.back_after_s is not None or self.is_impossible

    def document(self) -> dict[str, Any]:
        return {
            "killed": self.name,
            "back_after_s": round(self.back_after_s, 1) if self.back_after_s is not None else None,
            "left_hidden": self.left.hidden if self.left is not None else None,
            "left_visible": self.left.visible if self.left is not None else None,
        }


class Kills:
    """Performs the kills in order. The next one is due when the work goes on after the one before."""

    def __init__(self, kills: list[Kill], watch: Watch, say: Say) -> None:
        self.kills = kills
        self._watch = watch
        self._say = say

    @property
    def current(self) -> Kill | None:
        return next((kill for kill in self.kills if not kill.is_over), None)

    @property
    def are_over(self) -> bool:
        return self.current is None

    def on_tick(self, done: float) -> None:
        """`done` is the finished fraction of the work."""
        kill = self.current
        if kill is None:
            return
        if kill.killed_at is not None:
            text = kill.raise_again()
            if text is not None:
                self._say(text)
        elif done >= kill.at:
            kill.armed_at = kill.armed_at if kill.armed_at is not None else monotonic()
            written, waited_s = self._watch.look(), monotonic() - kill.armed_at
            is_in_batch = written is not None and written.hidden > 0 and (written.visible > 0 or waited_s > BOTH_S)
            if is_in_batch or waited_s > ARMED_S or done >= LAST_CHANCE:
                self._strike(kill, written, "in the middle of a batch" if is_in_batch else "between two batches")

    def _strike(self, kill: Kill, written: Written | None, when: str) -> None:
        what = kill.strike()
        if what is None:
            kill.is_impossible = True
            return
        kill.killed_at = monotonic()
        self._say(f"kill -9 {what}, {when}", "bold red")
        kill.left = self._watch.look() or written  # without a broker: what was seen last
        if kill.left is not None and kill.left.hidden > 0:
            hidden, visible = count(kill.left.hidden), count(max(0, kill.left.visible))
            self._say(
                f"left behind: {hidden} rows of {ENRICHED} in open transactions, visible to read_uncommitted only; "
                f"{visible} rows of {PLAIN}, visible to all"
            )

    def give_up(self) -> None:
        """There is no work left to kill anything in."""
        for kill in self.kills:
            if not kill.is_over:
                kill.is_impossible = True

    def on_batch(self) -> None:
        """A batch of the exactly-once output was committed."""
        kill = self.current
        if kill is not None and kill.killed_at is not None and kill.back_after_s is None:
            kill.back_after_s = monotonic() - kill.killed_at
            self._say(f"recovered: a batch was committed {kill.back_after_s:.1f} s after the kill", "bold green")


# --- what is killed -------------------------------------------------------------------------------------------


def strike_worker(driver_pid: int) -> str | None:
    """Kills the busiest of Spark's Python workers below a driver."""
    workers = python_workers(driver_pid)
    if not workers:
        return None
    pid = max(workers, key=lambda pid: workers[pid])
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return f"{pid}: a Python worker of Spark"


def python_workers(root: int) -> dict[int, int]:
    """Spark's Python workers below a process, with the CPU time they have used. Empty without /proc.

    A daemon forks them, so they have the daemon's command line.
    """
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    daemons: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended
        pid = int(path.parent.name)
        parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
        if DAEMON in command and "pyspark.worker" in command:
            daemons.add(pid)
    return {pid: spent[pid] for pid in daemons if parents[pid] in daemons and is_below(root, pid, parents)}


def is_below(root: int, pid: int, parents: dict[int, int]) -> bool:
    """Whether a process descends from another.

    >>> is_below(1, 3, {3: 2, 2: 1})
    True
    """
    while pid in parents:
        pid = parents[pid]
        if pid == root:
            return True
    return False
