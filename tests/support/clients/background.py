"""The thread that a client of a test runs in."""

import threading
from typing import Self

from tests.support.clients import TIMEOUT_S


class BackgroundClient:
    """A client that runs in its own thread until it is stopped. Subclasses implement `run`."""

    stop_timeout_s: float = TIMEOUT_S

    def __init__(self, title: str) -> None:
        self.title = title
        """Names the thread, and the client in the error if it does not stop."""
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=title, daemon=True)

    @staticmethod
    def unavailable() -> str | None:
        """None if it can run here, otherwise the reason."""
        return None

    def start(self) -> Self:
        self._thread.start()
        return self

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def begin_stopping(self) -> None:
        self._stopping.set()

    def stop(self) -> None:
        """Waits until the client has finished and closed; raises the error that it failed with."""
        self.begin_stopping()
        self._thread.join(self.stop_timeout_s)
        assert not self._thread.is_alive(), f"{self.title} did not stop"
        self.check()

    def check(self) -> None:
        """Raises the error that the client failed with, if it did."""
        if self.failure is not None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as failure:
            self.failure = failure

    def run(self) -> None:
        raise NotImplementedError
