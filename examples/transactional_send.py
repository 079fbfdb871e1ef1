"""Sends several records, possibly to several partitions, atomically.

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
    """True if everything was committed; False if it was aborted and may be sent again.

    Raises TransactionFatal if another producer has fenced this one.
    """
    with Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        try:
            for value in values:
                producer.send(topic, value)
            check()  # any other condition for the commit
            producer.commit_transaction()
            return True
        except TransactionFatal:
            raise  # nothing to abort: the coordinator has done that
        except (TransactionAbortable, ValueError):
            producer.abort_transaction()
            return False


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    _, address, topic_name, name = sys.argv
    print("committed" if run(address, topic_name, name) else "aborted")
