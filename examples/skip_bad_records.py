"""Deserialization with a dead letter topic: bad records are sent there with their origin, and reading continues.

python examples/skip_bad_records.py 127.0.0.1:9092 orders billing orders-unreadable
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from ottla import DeserializingConsumer, Producer, RecordDeserializationError


def run(
    bootstrap: str, topic: str, group: str, aside: str, process: Callable[[Any], None], *, until_end: bool = False
) -> None:
    """Processes values endlessly, or to the end of the topic."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        DeserializingConsumer(
            settings, bootstrap_servers=bootstrap, group_id=group, value_deserializer=json.loads
        ) as consumer,
    ):
        consumer.subscribe([topic])
        while not (until_end and consumer.is_at_end()):
            try:
                records = consumer.poll(1_000)
            except RecordDeserializationError as error:
                place = {"from": f"{error.topic_partition}", "offset": f"{error.offset}", "why": f"{error.__cause__}"}
                producer.send_and_wait(aside, error.record.value, key=error.record.key, headers=place)
                consumer.seek(error.topic_partition, error.offset + 1)
                continue
            for record in records:
                process(record.value)
            if records:
                consumer.commit()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    _, address, name, group_name, unreadable = sys.argv
    run(address, name, group_name, unreadable, process=print)
