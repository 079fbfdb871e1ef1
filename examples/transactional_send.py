"""Several records, in several partitions, that become visible together or not at all.

python examples/transactional_send.py 127.0.0.1:9092 orders order-desk-1
"""

import sys
from collections.abc import Callable, Iterable

from ottla import Producer, TransactionAbortable, TransactionFatal


def run(
    bootstrap: str,
    topic: str,
    transactional_id: str,
    values: Iterable[str] = ("message 1", "message 2", "message 3"),
    check: Callable[[], None] = lambda: None,
) -> bool:
    """True when everything was committed; False when it was aborted, and may be sent again.

    Raises TransactionFatal when another producer has taken the transactional id over: then this one is finished.
    """
    with Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        try:
            for value in values:
                producer.send(topic, value)
            check()  # whatever else has to hold before they may be seen
            producer.commit_transaction()
            return True
        except TransactionFatal:
            raise  # nothing can be aborted any more: the brokers have done so
        except (TransactionAbortable, ValueError):
            producer.abort_transaction()
            return False


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    _, address, topic_name, name = sys.argv
    print("committed" if run(address, topic_name, name) else "aborted")
