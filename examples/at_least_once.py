"""At least once: process first, commit second. After a crash in between, records come again; none is missing.

python examples/at_least_once.py 127.0.0.1:9092 orders billing
"""

import sys
from collections.abc import Callable

from ottla import Consumer, ConsumerRecord


def run(
    bootstrap: str, topic: str, group: str, process: Callable[[ConsumerRecord], None], *, until_idle_ms: int = 0
) -> None:
    """Processes records for ever, or until none has come for `until_idle_ms`."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with Consumer(settings, bootstrap_servers=bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        while True:
            records = consumer.poll(until_idle_ms or 60_000)
            if not records and until_idle_ms and consumer.assignment():
                return
            for record in records:
                process(record)
            consumer.commit()


if __name__ == "__main__":
    _, address, name, group_name = sys.argv
    run(address, name, group_name, process=lambda record: print(record.offset, record.value))
