"""Delivery callbacks that run in the client's own thread."""

import threading
from collections.abc import Callable
from typing import Any

from ottla import Producer
from tests.support.waiting import PATIENCE_S

ATTEMPTS = 50


def call_in_clients_thread(producer: Producer, topic: str, callback: Callable[[Any], None]) -> None:
    """Sends a record and calls `callback(delivery)` in the thread of the producer.

    A callback that is added after the record was stored runs in the thread that adds it, and on a busy machine that
    happens. Then another record is sent.
    """
    here = threading.get_ident()
    for _ in range(ATTEMPTS):
        late, called = threading.Event(), threading.Event()

        def forward(delivery: Any, late: threading.Event = late, called: threading.Event = called) -> None:
            try:
                if threading.get_ident() == here:
                    late.set()
                else:
                    callback(delivery)
            finally:
                called.set()

        producer.send(topic, b"calls back").add_done_callback(forward)
        assert called.wait(PATIENCE_S), "the record was not delivered"
        if not late.is_set():
            return
    raise AssertionError(f"{ATTEMPTS} records were stored before their callbacks were added")
