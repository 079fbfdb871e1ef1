"""What a broker does with its memory: of responses, and of objects that are no longer used."""

import ctypes
import re
import urllib.request
from pathlib import Path

import pytest

from ottla import Admin, Broker, Consumer, Producer
from ottla.protocol.messages.metadata import MetadataRequest
from tests.support.waiting import PATIENCE_S
from tests.support.wire.raw import RawConnection

FETCHES = 60
PAGE_BYTES = 4096


def page_faults(pid: int) -> int:
    """The number of page faults of the process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt()")
def test_large_answers_use_the_same_memory_again() -> None:
    """Clearing fresh pages for every fetch was two thirds of its cost."""
    value = b"x" * 900_000
    with Broker.embedded() as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("large", configs={"max.message.bytes": "2000000"})
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("large", value).result(PATIENCE_S)
        # Each seek waits for the fetch that is under way at the end of the log.
        with Consumer(bootstrap_servers=broker.bootstrap, fetch_max_wait_ms=1) as consumer:
            consumer.assign([("large", 0)])
            for turn in range(FETCHES + 10):
                if turn == 10:
                    before = page_faults(broker.pid)
                consumer.seek(("large", 0), 0)
                assert len(consumer.poll(300_000)) == 1
        faults = page_faults(broker.pid) - before
    assert faults < FETCHES * len(value) // PAGE_BYTES // 4, f"{faults} pages for {FETCHES} answers"


def full_collections(metrics_url: str) -> int:
    """How often Python looked at every object of the broker."""
    with urllib.request.urlopen(metrics_url, timeout=PATIENCE_S) as answer:
        found = re.search(
            r'^python_gc_collections_total\{generation="2"\} (\S+)$', answer.read().decode(), re.MULTILINE
        )
    assert found
    return int(float(found[1]))


def test_large_requests_cause_no_full_garbage_collections() -> None:
    """A full collection stops every client for a hundred milliseconds if there are many connections or partitions."""
    wanted = [MetadataRequest.MetadataRequestTopic(name=f"unknown-{number}") for number in range(10_000)]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    with Broker.embedded(settings={"ottla.metrics.listen": "127.0.0.1:0"}) as broker:
        found = re.search(r"metrics at (http://\S+)", broker.log)
        assert found
        with RawConnection(broker.bootstrap) as connection:
            connection.ask(request, 9)
            before = full_collections(found[1])
            for _ in range(15):
                connection.ask(request, 9)
            assert full_collections(found[1]) <= before + 1
