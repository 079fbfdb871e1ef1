"""The normal client's process: it produces, fetches, asks for metadata, sends heartbeats and commits, and times each.

    python -m tests.support.hostile.normal_client BOOTSTRAP OPERATIONS_PER_SECOND BROKER_PID

Operations start at fixed times, one after the other. Latencies are measured twice: from the start of the operation (for
each kind and all together), and from the time at which it was due (`all operations`), so that a stall counts for every
operation that it delays, also for those that it kept from being started. `waits` are the first ones without the time in
which a busy machine kept the broker from running (see `Wait`). The process prints `ready`, runs until a line with the
time of the end arrives on its standard input, and prints its measurements as JSON.
"""

import json
import select
import sys
import time
from typing import Any

from ottla.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.records.record_batch import build_batch, iter_batches
from ottla.types import TopicPartition
from tests.support.hostile.topics_used import fetch_request, produce_request
from tests.support.waiting import PATIENCE_S, Wait
from tests.support.wire.raw import RawConnection, Side
from tests.support.wire.raw_group import RawMember

TOPIC = "normal"
GROUP = "normal"
TIMEOUT_S = PATIENCE_S
ALL = "all operations"
"""From the time at which an operation was due."""
STARTED = "all operations, from their start"


class NormalClient:
    """One producer and consumer, and one member of a group, on a connection each."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        side = Side("broker", bootstrap, TOPIC)
        side.create(TOPIC, 1)
        side.close()
        self.data = RawConnection(bootstrap, timeout_s=TIMEOUT_S)
        self.member = RawMember(bootstrap, GROUP, [TOPIC], session_timeout_ms=600_000)
        self.join()
        self.sent = 0
        self.offset = 0

    def join(self) -> None:
        self.member.join()
        self.member.sync({self.member.member_id: []})

    def produce(self) -> None:
        self.sent += 1
        batch = build_batch([(int(time.time() * 1000), None, self.value, ())])
        response = self.data.ask(produce_request(TOPIC, batch), 9)
        (partition,) = response.responses[0].partition_responses
        check(partition.error_code)
        self.offset = partition.base_offset

    @property
    def value(self) -> bytes:
        return b"record %d" % self.sent

    def fetch(self) -> None:
        request = fetch_request(topic=TOPIC, max_bytes=1 << 20, partitions=range(1))
        request.topics[0].partitions[0].fetch_offset = self.offset
        response = self.data.ask(request, 11)
        (partition,) = response.responses[0].partitions
        check(partition.error_code)
        ((_, header),) = iter_batches(partition.records)
        assert header.base_offset == self.offset, f"offset {header.base_offset} instead of {self.offset}"
        assert self.value in bytes(partition.records), f"{self.value!r} is not at offset {self.offset}"

    def metadata(self) -> None:
        wanted = [MetadataRequest.MetadataRequestTopic(name=TOPIC)]
        response = self.data.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 9)
        check(response.topics[0].error_code)

    def heartbeat(self) -> None:
        check(self.member.heartbeat())

    def commit(self) -> None:
        (code,) = self.member.commit({TopicPartition(TOPIC, 0): self.offset})
        check(code)

    def reconnect(self) -> None:
        self.data.close()
        self.data = RawConnection(self.bootstrap, timeout_s=TIMEOUT_S)
        self.member.connection.close()
        self.member.connection = RawConnection(self.bootstrap, timeout_s=TIMEOUT_S)


def check(code: int) -> None:
    if code:
        raise RuntimeError(ErrorCode(code).name)


def is_told_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def measure(client: NormalClient, per_s: float, broker_pid: int) -> dict[str, Any]:
    operations = [
        client.produce, client.fetch, client.metadata, client.heartbeat, client.produce, client.fetch, client.commit,
    ]  # fmt: skip
    taken: dict[str, list[float]] = {ALL: [], STARTED: []}
    waits: list[float] = []
    errors: list[str] = []
    due = time.perf_counter()
    number = 0
    while not is_told_to_end():
        operation = operations[number % len(operations)]
        number += 1
        due += 1 / per_s
        if (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        started, waiting = time.perf_counter(), Wait(broker_pid)
        try:
            operation()
        except Exception as error:
            errors.append(f"{operation.__name__}: {type(error).__name__}: {error}")
            if isinstance(error, OSError) and not is_told_to_end():
                client.reconnect()
        ended = time.perf_counter()
        waits.append(waiting.seconds)
        taken.setdefault(operation.__name__, []).append(ended - started)
        taken[STARTED].append(ended - started)
        taken[ALL].append(ended - due)
    end = float(sys.stdin.readline())
    while (due := due + 1 / per_s) < end:
        taken[ALL].append(end - due)
    return {"seconds": taken, "waits": waits, "errors": errors}


def main(bootstrap: str, per_s: str, broker_pid: str) -> None:
    client = NormalClient(bootstrap)
    print("ready", flush=True)
    print(json.dumps(measure(client, float(per_s), int(broker_pid))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
