"""A worker: one client of a workload in its own thread, which continues despite errors. OWNER."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ottla.verify.clients.port import ClientError, ClientLibrary
from ottla.verify.workers.recorder import Recorder

PAUSE_AFTER_TROUBLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Setup:
    """What every worker needs."""

    name: str
    """The name of its client."""
    library: ClientLibrary
    recorder: Recorder
    seed: int
    """Of the run."""
    rate: float
    """Operations per second, on average."""


class Worker(threading.Thread):
    """Calls `live` in a loop: each call is the life of one instance of the client."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(name=f"verify-{setup.name}", daemon=True)
        self.client = setup.name
        self.library = setup.library
        self.recorder = setup.recorder
        self.random = random.Random(f"{setup.seed} {setup.name}")
        self.rate = setup.rate
        self.session = 0
        self.last_errors: list[str] = []
        """The latest errors, for reports."""
        self.crash: BaseException | None = None
        """A bug in this program, not in the cluster."""
        self._ending = threading.Event()
        self._settling = threading.Event()

    def settle(self) -> None:
        """From now on the worker does not cause failures itself."""
        self._settling.set()

    def stop(self) -> None:
        """Makes the worker end after its current operation."""
        self._settling.set()
        self._ending.set()

    @property
    def is_settling(self) -> bool:
        return self._settling.is_set()

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    def run(self) -> None:
        try:
            while not self.is_ending:
                self.session += 1
                try:
                    self.live()
                except ClientError as error:
                    self.note(error)
                    self._ending.wait(PAUSE_AFTER_TROUBLE_S)
        except BaseException as error:  # reported by the run: its result for this workload is no longer reliable
            self.crash = error

    def live(self) -> None:
        raise NotImplementedError

    def note(self, error: ClientError) -> None:
        self.last_errors = [*self.last_errors[-9:], str(error)]

    def hang(self, seconds: float) -> None:
        """Does nothing for a while. Not at the end of a run, when only the cluster may cause delays."""
        self._settling.wait(seconds)

    def pace(self) -> None:
        """Waits, so that the worker keeps its rate on average."""
        self._ending.wait(self.random.uniform(0, 2 / self.rate))

    def lifetime(self, least_s: float, most_s: float) -> Callable[[], bool]:
        """Whether an instance that begins now is still to be used."""
        end_us = self.recorder.now_us() + int(self.random.uniform(least_s, most_s) * 1e6)
        return lambda: not self.is_ending and (self.is_settling or self.recorder.now_us() < end_us)
