"""Every member reads everything, each with offsets of its own in a file: a cache in every process, say.

python examples/broadcast.py 127.0.0.1:9092 prices caches positions-1.json
"""

import sys
from collections.abc import Callable

from ottla import Consumer
from ottla.assignors.broadcast import BroadcastAssignor
from ottla.client.model import ConsumerRecord
from ottla.client.offset_store import FileOffsetStore
from ottla.client.stored_offsets import StoredOffsets


def run(
    bootstrap: str,
    topic: str,
    group: str,
    path: str,
    process: Callable[[ConsumerRecord], None],
    *,
    until_idle_ms: int = 0,
) -> None:
    """Processes records for ever, or until none has come for `until_idle_ms`."""
    # The group stores one offset a partition, so the members' commits would overwrite each other.
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with Consumer(
        settings, bootstrap_servers=bootstrap, group_id=group, partition_assignment_strategy=[BroadcastAssignor]
    ) as consumer:
        offsets = StoredOffsets(consumer, FileOffsetStore(path))
        consumer.subscribe([topic], listener=offsets)
        while True:
            records = consumer.poll(until_idle_ms or 60_000)
            for record in records:
                process(record)
            offsets.save()
            if not records and until_idle_ms and consumer.assignment():
                return


if __name__ == "__main__":
    run(*sys.argv[1:5], process=lambda record: print(record.offset, record.value))
