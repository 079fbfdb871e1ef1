"""OWNER of a run: sets up topics, starts the workers and the nemesis, and ends with the final read."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ottla.client.blocking import Admin
from ottla.client.core.model import NewTopic
from ottla.clock import monotonic
from ottla.errors import KafkaError, OttlaError
from ottla.verify.clients.port import ClientLibrary
from ottla.verify.final_read import HANG_AFTER_S, FinalRead
from ottla.verify.hangs import Hang, place_of, within
from ottla.verify.history import History
from ottla.verify.workers.recorder import Recorder
from ottla.verify.workers.worker import Worker
from ottla.verify.workloads import Options, Stage, build

REPLICAS = 3
JOIN_S = 30.0
"""How long a worker may take for its last operation: longer than any timeout of its client."""
TICK_S = 0.25

Say = Callable[[str], None]


class FaultInjector(Protocol):
    """Injects faults while the run lasts."""

    def begin(self, recorder: Recorder, progress_since: Callable[[int], list[str]]) -> None:
        """`progress_since(time)` names the clients without a successful operation since that time of the run."""

    def check(self) -> None:
        """Raises Hang if it makes no progress, or the error it has failed with."""

    def end(self) -> None:
        """Heals everything and stops injecting faults. Raises like `check`."""


class Run:
    """One run. `execute` returns its history."""

    def __init__(
        self,
        options: Options,
        settings: Mapping[str, str],
        libraries: Sequence[ClientLibrary],
        *,
        fault_injector: FaultInjector | None = None,
        say: Say = lambda _: None,
        on_tick: Callable[[Recorder, float], None] = lambda recorder, seconds: None,
    ) -> None:
        self.options = options
        self.recorder = Recorder(monotonic)
        self._settings = dict(settings)
        self._libraries = libraries
        self._fault_injector = fault_injector
        self._say = say
        self._on_tick = on_tick
        self._over = threading.Event()
        self.topics: list[str] = []

    def stop(self) -> None:
        """Ends the run early, but still does the final read. For signal handlers."""
        self._over.set()

    def execute(self) -> History:
        stage = build(self.options, self._libraries, self.recorder)
        self._create_topics(stage.topics)
        self.topics = stage.topics
        self._say(
            f"{len(stage.workers)} clients on {len(stage.topics)} topics "
            f"of {self.options.partitions} partitions for {self.options.seconds:g} s, seed {self.options.seed}"
        )
        started = monotonic()
        for worker in stage.workers:
            worker.start()
        try:
            if self._fault_injector is not None:
                self._fault_injector.begin(self.recorder, lambda since: self._idle_since(stage, since))
            while (passed := monotonic() - started) < self.options.seconds and not self._over.wait(TICK_S):
                self._on_tick(self.recorder, passed)
                _raise_crashes(stage.workers)
                if self._fault_injector is not None:
                    self._fault_injector.check()
        except Hang as hang:
            self._note_hang(hang)
        finally:
            try:
                if self._fault_injector is not None:
                    self._fault_injector.end()
            except Hang as hang:
                self._note_hang(hang)
            self._over.set()
        try:
            self._finish(stage)
        except Hang as hang:
            self._note_hang(hang)
        return self.recorder.history

    def _note_hang(self, hang: Hang) -> None:
        """Records a hang. The history so far is still checked."""
        text = str(hang)
        if text not in self.recorder.history.stuck:
            self._say(f"hangs: {text}")
            self.recorder.history.stuck.append(text)

    def _create_topics(self, topics: Sequence[str]) -> None:
        with Admin(self._settings) as admin:
            brokers = len(admin.describe_cluster().brokers)
            wanted = self.options.replication_factor
            replicas = min(REPLICAS, brokers) if wanted == -1 else wanted
            new = [NewTopic(topic, self.options.partitions, replicas, topic_configs(replicas)) for topic in topics]
            try:
                admin.create_topics(new)
            except KafkaError as error:
                raise OttlaError(
                    f"the topics of the run cannot be created: {error.code.name} {error.detail}",
                    "the principal needs CREATE on the cluster; choose other names with --prefix",
                ) from None

    def _idle_since(self, stage: Stage, since_us: int) -> list[str]:
        """Writers, and whole groups, that have not succeeded since a time. A member may own no partition."""
        success = self.recorder.last_success_us
        idle = [worker.client for worker in stage.writers if success.get(worker.client, -1) < since_us]
        for kind in {type(worker) for worker in stage.followers}:
            members = [worker.client for worker in stage.followers if type(worker) is kind]
            if all(success.get(client, -1) < since_us for client in members):
                idle += members
        return idle

    def _finish(self, stage: Stage) -> None:
        """The last phase of a run: writers have stopped, everything is read."""
        recorder, history = self.recorder, self.recorder.history
        for worker in stage.workers:
            worker.settle()
        self._await_progress(stage)
        final = FinalRead(
            self._settings, recorder, stage.topics, self.options.partitions, self.options.patience_s, self._say
        )
        self._stop(stage.writers)
        if stage.groups:
            self._say("waiting until the groups have read everything")
            self._limited("waiting for the groups", lambda: final.wait_for_groups(stage.groups))
        self._stop([*stage.followers, *stage.readers])
        _raise_crashes(stage.workers)
        history.about["workloads"] = list(self.options.workloads)
        final.fence(self._libraries, stage.transactional_ids)
        self._limited("the final read", lambda: final.read(self._libraries))
        self._limited(
            "fetching committed offsets", lambda: final.fetch_offsets({**stage.groups, **stage.offset_groups})
        )

    def _limited(self, what: str, act: Callable[[], None]) -> None:
        """Every step has its own timeouts, but a client library may not respect them."""
        operations = self.recorder.history.operations
        within(HANG_AFTER_S + self.options.patience_s, what, act, progress=lambda: len(operations))

    def _await_progress(self, stage: Stage) -> None:
        """Every client must have a successful operation after the last fault."""
        healed_us = self.recorder.now_us()
        deadline = monotonic() + self.options.patience_s
        while (idle := self._idle_since(stage, healed_us)) and monotonic() < deadline:
            self._on_tick(self.recorder, self.options.seconds)
            threading.Event().wait(TICK_S)
        for client in idle:
            worker = next(each for each in stage.workers if each.client == client)
            self.recorder.history.stuck.append(
                f"{client} had no success within {self.options.patience_s:g} s after the last fault; "
                f"its latest errors: {'; '.join(worker.last_errors[-3:]) or 'none'}"
            )

    def _stop(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.stop()
        deadline = monotonic() + JOIN_S
        for worker in workers:
            worker.join(max(0.1, deadline - monotonic()))
            if worker.is_alive():
                self.recorder.history.stuck.append(
                    f"{worker.client} has been in one call for more than {JOIN_S:g} s without a fault: "
                    f"{place_of(worker)}"
                )


def _raise_crashes(workers: Sequence[Worker]) -> None:
    for worker in workers:
        if worker.crash is not None:
            raise worker.crash


def topic_configs(replicas: int) -> dict[str, str]:
    """An acknowledged record must survive the loss of a broker. Nothing may be deleted, whatever the defaults of the
    cluster are: an expired record would look like a lost one."""
    return {
        "min.insync.replicas": str(max(1, replicas - 1)),
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
