"""What the transaction coordinator needs to know of the broker's settings. Pure."""

from typing import NamedTuple


class TransactionConfig(NamedTuple):
    """Each field is the broker setting of the same meaning, with Kafka's default."""

    max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    abort_timed_out_interval_ms: int = 10_000
    remove_expired_interval_ms: int = 3_600_000
    two_phase_commit_enable: bool = False
    transaction_version: int = 2
    """The finalized feature: 2 gives each transaction an epoch of its own (KIP-890)."""
