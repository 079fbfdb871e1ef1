"""Consume, transform and produce in one call, with a delivery guarantee of your choice.

python examples/transform.py 127.0.0.1:9092 orders bills biller exactly-once
"""

import sys

import ottla
from ottla import ConsumerRecord
from ottla.client.transform import Transformed


def bill(record: ConsumerRecord) -> bytes | None:
    """Returns a value, an ottla.Output with key and topic, a list of these, or None for no output."""
    return record.value.upper() if record.value else None


def run(
    bootstrap: str, source: str, to: str, group: str, guarantee: str, *, until_end: bool = False, batch: int = 500
) -> Transformed:
    """Transforms endlessly, or to the end of the topic."""
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
