"""Offsets in a local file. They are also committed to the group, which shows the lag.

python examples/offsets_in_file.py 127.0.0.1:9092 orders billing positions.json
"""

import sys
from collections.abc import Callable

from ottla import Consumer, ConsumerRecord, FileOffsetStore, StoredOffsets


def run(
    bootstrap: str,
    topic: str,
    group: str,
    path: str,
    process: Callable[[ConsumerRecord], None],
    *,
    until_end: bool = False,
) -> None:
    """Processes records endlessly, or to the end of the topic. A crash repeats records that were not saved."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with Consumer(settings, bootstrap_servers=bootstrap, group_id=group) as consumer:
        offsets = StoredOffsets(consumer, FileOffsetStore(path))
        consumer.subscribe([topic], listener=offsets)
        while not (until_end and consumer.is_at_end()):
            records = consumer.poll(1_000)
            for record in records:
                process(record)
            offsets.save()  # writes and syncs the file, then commits to the group, only to show the lag


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    _, address, name, group_name, file = sys.argv
    run(address, name, group_name, file, process=lambda record: print(record.offset, record.value))
