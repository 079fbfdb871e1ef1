"""Records as objects: what cannot be read is put aside, with the place it came from, and reading goes on after it.

python examples/skip_bad_records.py 127.0.0.1:9092 orders billing orders-unreadable
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from ottla import DeserializingConsumer, Producer, RecordDeserializationError


def run(
    bootstrap: str, topic: str, group: str, aside: str, process: Callable[[Any], None], *, until_idle_ms: int = 0
) -> None:
    """Processes values for ever, or until none has come for `until_idle_ms`."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        DeserializingConsumer(
            settings, bootstrap_servers=bootstrap, group_id=group, value_deserializer=json.loads
        ) as consumer,
    ):
        consumer.subscribe([topic])
        while True:
            try:
                records = consumer.poll(until_idle_ms or 60_000)
            except RecordDeserializationError as error:
                place = {"from": f"{error.topic_partition}", "offset": f"{error.offset}", "why": f"{error.__cause__}"}
                producer.send_and_wait(aside, error.record.value, key=error.record.key, headers=place)
                consumer.seek(error.topic_partition, error.offset + 1)
                continue
            for record in records:
                process(record.value)
            if records:
                consumer.commit()
            elif until_idle_ms and consumer.assignment():
                return


if __name__ == "__main__":
    _, address, name, group_name, unreadable = sys.argv
    run(address, name, group_name, unreadable, process=print)
