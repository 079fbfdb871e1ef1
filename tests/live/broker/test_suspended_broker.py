"""A broker that was suspended: its log says so, and blames no step of its own."""

import os
import signal
import time

from ottla import Admin, Broker
from tests.support.waiting import eventually

SUSPENDED_S = 1.0


def test_a_suspended_process_is_not_reported_as_a_slow_step() -> None:
    with Broker.embedded() as broker, Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("orders")
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(SUSPENDED_S)
        os.kill(broker.pid, signal.SIGCONT)
        eventually(lambda: "the event loop was" in broker.log)
        assert "the process did not get the CPU" in broker.log
        assert "the event loop was blocked" not in broker.log
