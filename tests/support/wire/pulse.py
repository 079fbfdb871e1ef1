"""A client that asks a broker for its versions all the time, in a thread, and measures how long the answers take."""

import threading
import time
from typing import Self

from ottla.protocol.messages.api_versions import ApiVersionsRequest
from tests.support.waiting import Wait
from tests.support.wire.raw import RawConnection


class Pulse:
    """Use it in a `with` block around what might block the broker."""

    def __init__(self, bootstrap: str, *, pause_s: float = 0.001, broker_pid: int | None = None) -> None:
        """With `broker_pid`, only the broker's own doing counts: see `Wait`."""
        self.answers = 0
        self.longest_s = 0.0
        """The longest time between a question and its answer."""
        self._connection = RawConnection(bootstrap, client_id="pulse")
        self._broker_pid = broker_pid
        self._pause_s = pause_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._connection.ask(ApiVersionsRequest(), 0)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join()
        self._connection.close()

    def _beat(self) -> None:
        while not self._ends.wait(self._pause_s):
            asked = time.perf_counter()
            wait = None if self._broker_pid is None else Wait(self._broker_pid)
            self._connection.ask(ApiVersionsRequest(), 0)
            self.longest_s = max(self.longest_s, time.perf_counter() - asked if wait is None else wait.seconds)
            self.answers += 1
