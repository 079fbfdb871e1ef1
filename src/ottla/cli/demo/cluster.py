"""The cluster of `ottla demo --brokers N`: the broker that leads most partitions is killed and later restarted."""

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.embedded.cluster import EmbeddedCluster
from ottla.child_process import memory_of
from ottla.cli.output import logs_from
from ottla.client.blocking import Admin
from ottla.clock import monotonic
from ottla.errors import KafkaError, OttlaError

if TYPE_CHECKING:
    from ottla.cli.demo.view import Say

KILL_AT, RESTART_AT = 0.2, 0.6
"""The fractions of the work after which the broker is killed and restarted."""
ELECTION_TIMEOUT_S = 30.0
POLL_S = 0.01


class DemoCluster:
    """Kills a broker and restarts it as the work proceeds."""

    def __init__(self, cluster: EmbeddedCluster, say: "Say") -> None:
        self.bootstrap = cluster.bootstrap
        self._cluster = cluster
        self._say = say
        self._victim: int | None = None
        self._is_back = False
        self._killed_at = 0.0
        self._elected_after_s: float | None = None

    def on_progress(self, done: float, topics: Sequence[str]) -> None:
        """`done` is the finished fraction of the work, from 0 to 1."""
        if self._victim is None and done >= KILL_AT:
            self._say(f"kill -9 {self.kill(topics)}", "bold red")
            self.await_leaders(topics)
        elif done >= RESTART_AT:
            self.restart()

    def document(self) -> dict[str, Any]:
        elected = self._elected_after_s
        return {
            "brokers": len(self._cluster),
            "broker_killed": self._victim,
            "new_leaders_after_s": round(elected, 3) if elected is not None else None,
        }

    def kill(self, topics: Sequence[str]) -> str:
        """Kills the broker that leads most partitions of the topics, and returns a description of it."""
        with self._admin() as admin:
            leaders = _leaders(admin, topics)
        self._victim = victim = Counter(leaders).most_common(1)[0][0]
        pid = self._cluster[victim].pid
        self._cluster.kill(victim)
        self._killed_at = monotonic()
        return f"{pid}: broker {victim}, which leads {leaders.count(victim)} of {len(leaders)} partitions"

    def await_leaders(self, topics: Sequence[str]) -> None:
        """Waits until every partition has a live leader. Later calls do nothing."""
        if self._elected_after_s is not None:
            return
        with self._admin() as admin:
            while self._victim in (leaders := _leaders(admin, topics)) or -1 in leaders:
                if monotonic() - self._killed_at > ELECTION_TIMEOUT_S:
                    raise OttlaError(
                        f"no new leaders within {ELECTION_TIMEOUT_S:.0f} s", "this is a bug, please report it"
                    )
                time.sleep(POLL_S)
        self._elected_after_s = monotonic() - self._killed_at
        self._say(f"its partitions have new leaders after {self._elected_after_s * 1000:.0f} ms", "bold green")

    def restart(self) -> None:
        """Restarts the killed broker."""
        if self._victim is None or self._is_back:
            return
        self._is_back = True
        started = monotonic()
        self._cluster.restart(self._victim)
        self._say(
            f"broker {self._victim} is back after {(monotonic() - started) * 1000:.0f} ms and catches up", "default"
        )

    def _admin(self) -> Admin:
        return Admin({"bootstrap.servers": self.bootstrap})

    def memory_bytes(self) -> int:
        """Resident memory of the running brokers."""
        return sum(memory_of(broker.pid) or 0 for broker in self._cluster if broker.is_running)


def _leaders(admin: Admin, topics: Sequence[str]) -> list[int]:
    try:
        return [p.leader for topic in admin.describe_topics(topics) for p in topic.partitions]
    except KafkaError as error:
        if not error.retriable:
            raise
        return [-1]


@contextlib.contextmanager
def demo_cluster(
    brokers: int, data: os.PathLike[str] | None, settings: dict[str, str], say: "Say"
) -> Iterator[DemoCluster]:
    """A cluster for the duration of the demo."""
    if brokers < 3:
        raise OttlaError(f"a cluster of {brokers} brokers cannot lose one with acks=all", "use --brokers 3 or more")
    started = monotonic()
    with logs_from("ottla.net", logging.ERROR), EmbeddedCluster(brokers, data, settings=settings) as cluster:
        say(f"{brokers} brokers started in {(monotonic() - started) * 1000:.0f} ms at {cluster.bootstrap}", "default")
        yield DemoCluster(cluster, say)
