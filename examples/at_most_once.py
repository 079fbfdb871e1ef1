"""At most once: commit first, process second. After a crash in between, records are missing; none comes twice.

python examples/at_most_once.py 127.0.0.1:9092 measurements dashboard
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
            consumer.commit()  # raises if it did not work: then nothing has been processed either
            for record in records:
                process(record)


if __name__ == "__main__":
    _, address, name, group_name = sys.argv
    run(address, name, group_name, process=lambda record: print(record.offset, record.value))
