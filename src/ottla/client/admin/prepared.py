"""Admin calls that complete a prepared transaction, from any process (KIP-939)."""

from collections.abc import Mapping
from typing import Any

from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.client.core.arguments import Timeout, as_committed_offsets, as_timeout_ms
from ottla.client.core.network import Network
from ottla.client.core.settings import ProducerConfig
from ottla.client.transactions.requests import group_metadata
from ottla.client.transactions.transaction_manager import TransactionManager
from ottla.errors import ArgumentError, ErrorCode, KafkaError


async def complete_prepared(
    network: Network,
    prepared: PreparedTransaction,
    *,
    commit: bool,
    offsets: Mapping[Any, Any] | None = None,
    group: Any = None,
    timeout_ms: Timeout | None = None,
) -> None:
    """Commits or aborts what `producer.prepare_transaction()` left open."""
    if offsets and not group:
        raise ArgumentError("offsets need a group to commit them for", "Pass group= as well.")
    wanted = as_committed_offsets(offsets or {})
    network.start()
    wait_ms = network.config.default_api_timeout_ms if timeout_ms is None else as_timeout_ms(timeout_ms)
    deadline = network.now() + wait_ms
    await network.until_connected(wait_ms)
    manager = TransactionManager(
        ProducerConfig(transactional_id=prepared.transactional_id),
        network.view,
        transaction_version=lambda: network.feature("transaction.version"),
        has_unfinished=lambda: False,
        use_producer_id=lambda producer_id, producer_epoch: None,
        backoff=network.backoff,
        jitter=network.jitter,
    )
    manager.adopt(prepared)
    steps = []
    if offsets:
        steps.append(manager.send_offsets(group_metadata(group), wanted))
    steps.append(manager.end(commit=commit))
    network.add(manager)
    try:
        done = await network.until(lambda: all(step.is_done for step in steps), max(0, deadline - network.now()))
    finally:
        network.remove(manager)
    for step in steps:
        if step.error is not None:
            raise step.error
    if not done:
        word = "committed" if commit else "aborted"
        detail = f"the transaction of {prepared.transactional_id} was not {word} within {wait_ms} ms"
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{detail}{network.timeout_reason()}")
