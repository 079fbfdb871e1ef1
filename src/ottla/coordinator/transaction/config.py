"""The broker settings that the transaction coordinator uses. Pure."""

from dataclasses import dataclass

from ottla.config import BaseConfig, setting


@dataclass(init=False, repr=False, eq=False)
class TransactionConfig(BaseConfig):
    """How a broker coordinates transactions."""

    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms", 900_000, "The longest transaction timeout a producer may request.", at_least=1
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        604_800_000,
        "A transactional id that is unused for this long is removed.",
        at_least=1,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often to abort transactions that have timed out.",
        at_least=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often to remove unused transactional ids.",
        at_least=1,
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "How long a batch waits for the end of its producer's previous transaction, before the producer has to retry.",
        at_least=0,
    )
    add_partitions_to_txn_retry_backoff_ms: int = setting(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "The longest pause until the coordinator is asked again whether that transaction has ended.",
        at_least=1,
    )
    transaction_two_phase_commit_enable: bool = setting(
        "transaction.two.phase.commit.enable",
        False,
        "Whether producers may prepare transactions that an external coordinator decides (KIP-939).",
    )
