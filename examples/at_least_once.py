"""At least once: process, then commit. After a crash in between, records are processed again; none is missing.

python examples/at_least_once.py 127.0.0.1:9092 orders billing
"""

import sys
from collections.abc import Callable

from ottla import Consumer, ConsumerRecord


def run(
    bootstrap: str, topic: str, group: str, process: Callable[[ConsumerRecord], None], *, until_end: bool = False
) -> None:
    """Processes records endlessly, or with `until_end` to the end of the topic."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with Consumer(settings, bootstrap_servers=bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        while not (until_end and consumer.is_at_end()):
            records = consumer.poll(1_000)
            for record in records:
                process(record)
            if records:
                consumer.commit()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    _, address, name, group_name = sys.argv
    run(address, name, group_name, process=lambda record: print(record.offset, record.value))
