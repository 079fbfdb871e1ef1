"""Exactly once, step by step: output records and consumed offsets are committed in one transaction.

python examples/exactly_once.py 127.0.0.1:9092 orders bills biller instance-1

`ottla.transform(function, source, to, group_id=…)` does the same in one call.
"""

import sys
from collections.abc import Callable

from ottla import Consumer, ConsumerRecord, Producer, TransactionAbortable


def run(
    bootstrap: str,
    source: str,
    to: str,
    group: str,
    instance: str,
    transform: Callable[[ConsumerRecord], bytes] = lambda record: record.value or b"",
    *,
    until_end: bool = False,
    max_poll_records: int = 500,
) -> None:
    """Copies endlessly, or to the end of the topic. Raises TransactionFatal if another instance has taken over."""
    reading = {"isolation.level": "read_committed", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    reading["max.poll.records"] = max_poll_records  # per transaction
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=f"{group}-{instance}") as producer,
        Consumer(reading, bootstrap_servers=bootstrap, group_id=group) as consumer,
    ):
        producer.init_transactions()  # fences older producers with this id and aborts their transaction
        consumer.subscribe([source])
        while not (until_end and consumer.is_at_end()):
            records = list(consumer.poll(1_000))
            if not records:
                continue
            try:
                with producer.transaction():
                    for record in records:
                        producer.send(to, transform(record), key=record.key)
                    positions = {(record.topic, record.partition): record.offset + 1 for record in records}
                    producer.send_offsets_to_transaction(positions, consumer.group_metadata())
            except TransactionAbortable:
                # Aborted already, most likely by a rebalance. Read the partitions that are still ours again.
                mine = consumer.assignment()
                for record in reversed(records):
                    if (record.topic, record.partition) in mine:
                        consumer.seek((record.topic, record.partition), record.offset)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    _, address, source_name, target_name, group_name, instance_name = sys.argv
    run(
        address,
        source_name,
        target_name,
        group_name,
        instance_name,
        transform=lambda record: (record.value or b"").upper(),
    )
