"""A transaction that is prepared by one process and decided by another, together with something outside Kafka.

python examples/two_phase_commit.py 127.0.0.1:9092 orders

On Ottla start the broker with `--set transaction.two.phase.commit.enable=true`, and a prepared transaction waits for
its decision for ever. Elsewhere leave two_phase off: the transaction then waits for `transaction.timeout.ms`.
"""

import sys
from collections.abc import Iterable

from ottla import Admin, Producer
from ottla.client.admin.transaction_model import PreparedTransaction


def prepare(bootstrap: str, topic: str, values: Iterable[str], *, two_phase: bool = True) -> PreparedTransaction:
    """Writes, and leaves the transaction open. What comes back can be pickled and sent to whoever decides."""
    settings = {"transactional.id": f"{topic}-writer", "transaction.two.phase.commit.enable": two_phase}
    with Producer(settings, bootstrap_servers=bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value)
        return producer.prepare_transaction()


def decide(bootstrap: str, prepared: PreparedTransaction, *, commit: bool) -> None:
    """From any process, at any time."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        if commit:
            admin.commit_prepared(prepared)
        else:
            admin.abort_prepared(prepared)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    address, name = sys.argv[1:3]
    waiting = prepare(address, name, ["one", "two"])
    decide(address, waiting, commit=input(f"commit {waiting}? [y/n] ") == "y")
