"""The admin's calls that end a prepared transaction, from wherever its holder is. Mixed into AsyncAdmin and Admin."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.client.core.network import Network
from ottla.client.core.settings import ProducerConfig
from ottla.client.transactions.requests import group_metadata, offsets_to_commit
from ottla.client.transactions.transaction_manager import Transactions
from ottla.errors import ErrorCode, KafkaError, OttlaError


class AsyncPreparedAdmin:
    """The part of AsyncAdmin that ends prepared transactions."""

    _network: Network

    async def commit_prepared(
        self,
        prepared: PreparedTransaction,
        *,
        offsets: Mapping[Any, Any] | None = None,
        group: Any = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commits what `producer.prepare_transaction()` has left open; without offsets the same again is harmless.

        With `offsets` and `group` these become part of the transaction first: a ledger that tells whether it was
        committed. Read it before trying again: a transaction that has ended takes no offsets any more.

        Raises PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING or INVALID_TXN_STATE where the transaction was decided
        otherwise: by another instance, or by its timeout.

        >>> await admin.commit_prepared(prepared, offsets={("batches", 0): 7}, group="my-sink")
        """
        await self._complete(prepared, True, offsets or {}, group, timeout_ms)

    async def abort_prepared(self, prepared: PreparedTransaction, *, timeout_ms: int | None = None) -> None:
        """Aborts what `producer.prepare_transaction()` has left open; the same again is harmless."""
        await self._complete(prepared, False, {}, None, timeout_ms)

    async def _complete(
        self,
        prepared: PreparedTransaction,
        commit: bool,
        offsets: Mapping[Any, Any],
        group: Any,
        timeout_ms: int | None,
    ) -> None:
        if offsets and not group:
            raise OttlaError("offsets are committed for a group", "Give group= as well.")
        wanted = offsets_to_commit(offsets)
        network = self._network
        network.start()
        timeout_ms = network.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = network.now() + timeout_ms
        await network.until_connected(timeout_ms)
        transactions = Transactions(
            ProducerConfig(transactional_id=prepared.transactional_id),
            network.view,
            transaction_version=lambda: network.feature("transaction.version"),
            has_unfinished=lambda: False,
            use_producer_id=lambda producer_id, producer_epoch: None,
            backoff=network.backoff,
            jitter=network.jitter,
        )
        transactions.adopt(prepared)
        steps = []
        if offsets:
            steps.append(transactions.send_offsets(group_metadata(group), wanted))
        steps.append(transactions.end(commit=commit))
        network.add(transactions)
        try:
            done = await network.until(lambda: all(step.is_done for step in steps), max(0, deadline - network.now()))
        finally:
            network.remove(transactions)
        for step in steps:
            if step.error is not None:
                raise step.error
        if not done:
            word = "committed" if commit else "aborted"
            detail = f"the transaction of {prepared.transactional_id} was not {word} within {timeout_ms} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{detail}{network.blame()}")


class PreparedAdmin:
    """The part of Admin that ends prepared transactions: each call of AsyncPreparedAdmin, waited for."""

    _async: Any
    _call: Callable[[Coroutine[Any, Any, Any]], Any]

    def commit_prepared(
        self,
        prepared: PreparedTransaction,
        *,
        offsets: Mapping[Any, Any] | None = None,
        group: Any = None,
        timeout_ms: int | None = None,
    ) -> None:
        self._call(self._async.commit_prepared(prepared, offsets=offsets, group=group, timeout_ms=timeout_ms))

    def abort_prepared(self, prepared: PreparedTransaction, *, timeout_ms: int | None = None) -> None:
        self._call(self._async.abort_prepared(prepared, timeout_ms=timeout_ms))
