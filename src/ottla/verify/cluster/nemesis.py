"""The nemesis: injects the faults of the plan, heals them, and waits until the clients have continued. OWNER."""

import contextlib
import threading
from collections.abc import Callable, Sequence

from ottla.clock import monotonic
from ottla.verify.cluster.local import LocalCluster
from ottla.verify.cluster.plan import CLOCK, KILL, PARTITION, PAUSE, Episode, Injection, episodes
from ottla.verify.hangs import Hang, hang_of
from ottla.verify.workers.recorder import Recorder

FIRST_CALM_S = 1.0
POLL_INTERVAL_S = 0.1
RESTORE_LIMIT_S = 180.0
"""Healing takes longer only if something hangs: a broker may take a minute to stop, and a minute to start."""


class Nemesis:
    """Runs in its own thread. All faults are healed when `end` returns."""

    def __init__(
        self,
        cluster: LocalCluster,
        kinds: Sequence[str],
        seed: int,
        *,
        patience_s: float,
        say: Callable[[str], None],
        restore_limit_s: float = RESTORE_LIMIT_S,
    ) -> None:
        self._cluster = cluster
        self._plan = episodes(seed, kinds, len(cluster.brokers), has_remote_store=cluster.has_remote_store)
        self._patience_s = patience_s
        self._say = say
        self._restore_limit_s = restore_limit_s
        self._due = float("inf")
        """When the current step must have ended."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verify-nemesis", daemon=True)
        self._crash: BaseException | None = None

    def begin(self, recorder: Recorder, progress_since: Callable[[int], list[str]]) -> None:
        self._recorder, self._progress_since = recorder, progress_since
        self._thread.start()

    def check(self) -> None:
        """Raises Hang if a step takes too long, and the error that has ended this nemesis."""
        if self._crash is not None:
            raise self._crash
        if self._thread.is_alive() and monotonic() > self._due:
            raise self._hang()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(self._restore_limit_s)
        if self._thread.is_alive():
            raise self._hang()
        if self._crash is not None:
            raise self._crash

    def _hang(self) -> Hang:
        return hang_of("the nemesis", self._restore_limit_s, self._thread)

    def _expect(self, seconds: float) -> None:
        """Sets the deadline of the next step: this long, plus the limit for healing."""
        self._due = monotonic() + seconds + self._restore_limit_s

    def _run(self) -> None:
        try:
            self._ending.wait(FIRST_CALM_S)
            while not self._ending.is_set():
                self._episode(next(self._plan))
        except BaseException as error:
            self._crash = error
            with contextlib.suppress(Exception):
                self._cluster.restore()

    def _episode(self, episode: Episode) -> None:
        recorder = self._recorder
        self._expect(0)
        self._note_deaths()
        faults = []
        for injection in episode.injections:
            faults.append(recorder.begin_fault(injection.kind, (injection.broker,), str(injection)))
            self._say(str(injection))
            self._inject(injection)
        self._expect(episode.seconds)
        self._ending.wait(episode.seconds)
        problems = self._cluster.restore()
        healed_us = recorder.now_us()
        for fault in faults:
            fault.ended_us = healed_us
        recorder.history.stuck += problems
        started = monotonic()
        self._expect(self._patience_s + episode.calm_s)
        while self._progress_since(healed_us) and monotonic() - started < self._patience_s:
            if self._ending.wait(POLL_INTERVAL_S):
                return
        idle = self._progress_since(healed_us)
        if idle:
            self._say(f"healed, but {', '.join(idle)} did not continue within {self._patience_s:g} s")
        else:
            self._say(f"healed; all clients have continued after {monotonic() - started:.1f} s")
        self._ending.wait(episode.calm_s)

    def _inject(self, injection: Injection) -> None:
        if injection.kind == KILL:
            self._cluster.kill(injection.broker)
        elif injection.kind == PAUSE:
            self._cluster.pause(injection.broker)
        elif injection.kind == PARTITION:
            self._cluster.cut_off(injection.broker, injection.cut_off_from)
        elif injection.kind == CLOCK:
            self._cluster.shift_clock(injection.broker, injection.shift_ms)

    def _note_deaths(self) -> None:
        dead = self._cluster.unexpected_ends()
        if dead:
            self._recorder.history.stuck += dead
            self._cluster.restore()
