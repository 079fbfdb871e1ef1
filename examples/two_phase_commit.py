"""Two-phase commit: one process prepares a transaction, another one commits or aborts it.

python examples/two_phase_commit.py 127.0.0.1:9092 orders

With an Ottla broker started with `--set transaction.two.phase.commit.enable=true`, a prepared transaction never times
out. With other brokers use two_phase=False: the transaction is then aborted after `transaction.timeout.ms`.
"""

import sys
from collections.abc import Iterable

from ottla import Admin, Producer
from ottla.client.admin.transaction_model import PreparedTransaction


def prepare(bootstrap: str, topic: str, values: Iterable[str], *, two_phase: bool = True) -> PreparedTransaction:
    """Writes and prepares. The result can be pickled and sent to the process that decides."""
    settings = {"transactional.id": f"{topic}-writer", "transaction.two.phase.commit.enable": two_phase}
    with Producer(settings, bootstrap_servers=bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value)
        return producer.prepare_transaction()


def decide(bootstrap: str, prepared: PreparedTransaction, *, commit: bool) -> None:
    """Can be called in any process, at any time."""
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
