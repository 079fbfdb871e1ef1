"""Consume, transform, produce in one call, with the guarantee of your choice.

python examples/transform.py 127.0.0.1:9092 orders bills biller exactly-once
"""

import sys

import ottla
from ottla import ConsumerRecord
from ottla.client.transform import Transformed


def bill(record: ConsumerRecord) -> bytes | None:
    """What becomes of a record: a value, an ottla.Output with key and topic, several of them, or None for nothing."""
    return record.value.upper() if record.value else None


def run(
    bootstrap: str, source: str, to: str, group: str, guarantee: str, *, until_end: bool = False, batch: int = 500
) -> Transformed:
    """Transforms for ever, or up to the end of the topic."""
    return ottla.transform(
        bill,
        source,
        to,
        group_id=group,
        guarantee=guarantee,
        until_end=until_end,
        settings={"bootstrap.servers": bootstrap, "max.poll.records": batch},
    )


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    _, address, first, second, group_name, promise = sys.argv
    run(address, first, second, group_name, promise)
