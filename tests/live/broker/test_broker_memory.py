"""What a broker does with the memory of its answers."""

import ctypes
from pathlib import Path

import pytest

from ottla import Admin, Broker, Consumer, Producer

FETCHES = 60
PAGE_BYTES = 4096


def page_faults(pid: int) -> int:
    """How often the process had to be given a page of memory."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library cannot be told to keep memory")
def test_large_answers_use_the_same_memory_again() -> None:
    """Clearing fresh pages for every fetch was two thirds of its cost."""
    value = b"x" * 900_000
    with Broker.embedded() as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("large", configs={"max.message.bytes": "2000000"})
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("large", value).result(60)
        with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([("large", 0)])
            for turn in range(FETCHES + 10):
                if turn == 10:
                    before = page_faults(broker.pid)
                consumer.seek(("large", 0), 0)
                assert len(consumer.poll(60_000)) == 1
        faults = page_faults(broker.pid) - before
    assert faults < FETCHES * len(value) // PAGE_BYTES // 4, f"{faults} pages for {FETCHES} answers"
