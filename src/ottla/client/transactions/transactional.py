"""The producer's calls about transactions, for both faces. Mixed into AsyncProducer and Producer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.client.core.network import Network
from ottla.client.core.settings import ProducerConfig
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.sender import Sender
from ottla.client.transactions.requests import GroupMetadata, group_metadata, offsets_to_commit
from ottla.client.transactions.state import Operation, State
from ottla.client.transactions.transaction_manager import Transactions
from ottla.errors import ErrorCode, KafkaError, OttlaError

Offsets = Mapping[Any, Any]
"""(topic, partition) -> the offset of the next record to read, or an object with offset, leader_epoch, metadata."""


class AsyncTransactional:
    """The part of AsyncProducer that is about transactions."""

    config: ProducerConfig
    _network: Network
    _accumulator: Accumulator
    _sender: Sender
    _transactions: Transactions | None = None

    def _set_up_transactions(self) -> None:
        network = self._network
        transactions = Transactions(
            self.config,
            network.view,
            transaction_version=lambda: network.feature("transaction.version"),
            has_unfinished=lambda: bool(self._accumulator.unfinished) or self._sender.is_writing,
            use_producer_id=self._sender.use_producer_id,
            on_change=lambda: self._accumulator.refuse(transactions.refusal()),
            backoff=network.backoff,
            jitter=network.jitter,
        )
        self._transactions = self._sender.transactions = transactions
        self._accumulator.refuse(transactions.refusal())
        network.add(transactions)  # after the sender, whose questions it answers

    async def init_transactions(
        self, *, keep_prepared: bool = False, timeout_ms: int | None = None
    ) -> PreparedTransaction | None:
        """Takes the transactional id over: older producers of that name are fenced, what they left open is aborted.

        With `keep_prepared` (and two-phase commit) a transaction that was prepared is kept and given back; commit or
        abort it before anything else. Called once, before the first transaction.
        """
        transactions = self._need_transactions("init_transactions()")
        if keep_prepared and not self.config.transaction_two_phase_commit_enable:
            raise OttlaError(
                "keep_prepared needs two-phase commit",
                "Set transaction.two.phase.commit.enable, here and on the brokers.",
            )
        self._network.start()
        await self._until_done(transactions.init(keep_prepared), timeout_ms)
        return transactions.prepared

    async def begin_transaction(self) -> None:
        """What is sent from now on becomes visible together, at the commit."""
        self._need_transactions("begin_transaction()").begin()

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group: str | GroupMetadata | Any, *, timeout_ms: int | None = None
    ) -> None:
        """Commits a group's positions with the transaction.

        `group` is what `consumer.group_metadata()` gives, so that a consumer that was replaced meanwhile is refused;
        a plain group id checks nothing.
        """
        transactions = self._need_transactions("send_offsets_to_transaction()")
        wanted = offsets_to_commit(offsets)
        await self._until_done(transactions.send_offsets(group_metadata(group), wanted), timeout_ms)

    async def commit_transaction(self, *, timeout_ms: int | None = None) -> None:
        """Sends what still waits, then makes everything visible. If it raises REQUEST_TIMED_OUT, call it again."""
        await self._until_done(self._need_transactions("commit_transaction()").end(commit=True), timeout_ms)

    async def abort_transaction(self, *, timeout_ms: int | None = None) -> None:
        """Drops what still waits, and nobody who reads committed records sees the rest."""
        await self._until_done(self._need_transactions("abort_transaction()").end(commit=False), timeout_ms)

    async def prepare_transaction(self, *, timeout_ms: int | None = None) -> PreparedTransaction:
        """Stores everything and leaves the transaction open, for `admin.commit_prepared()` or `abort_prepared()`,
        from this process or another. close() does not touch it."""
        transactions = self._need_transactions("prepare_transaction()")
        await self._until_done(transactions.prepare(), timeout_ms)
        assert transactions.prepared is not None
        return transactions.prepared

    async def continue_as(self, transactional_id: str) -> None:
        """Goes on under another transactional id, on the same connections; init_transactions() comes next.

        What was prepared under the old id stays as it is.
        """
        before = self._need_transactions("continue_as()")
        if not transactional_id or before.state not in (State.READY, State.PREPARED):
            problem = f"the producer is {before.state.value}" if transactional_id else "the new id is empty"
            raise OttlaError(f"continue_as() is not possible: {problem}", "End the transaction, or prepare it, first.")
        self._network.remove(before)
        self.config = replace(self.config, transactional_id=transactional_id)
        self._set_up_transactions()
        assert self._transactions is not None
        self._transactions.know_coordinators_of(before)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Commits at the end of the block, aborts when it raises.

        >>> async with producer.transaction():
        ...     await producer.send("orders", b"42 apples")
        """
        await self.begin_transaction()
        try:
            yield
            if self._state() in (State.OPEN, State.FAILED):
                await self.commit_transaction()
        except BaseException:
            if self._state() in (State.OPEN, State.FAILED):
                await asyncio.shield(self.abort_transaction())
            raise

    def _state(self) -> State:
        assert self._transactions is not None
        return self._transactions.state

    def _need_transactions(self, call: str) -> Transactions:
        if self._transactions is None:
            raise OttlaError(f"{call} needs a transactional producer", "Set transactional.id when making the producer.")
        return self._transactions

    async def _until_done(self, operation: Operation, timeout_ms: int | None) -> None:
        timeout_ms = self.config.max_block_ms if timeout_ms is None else timeout_ms
        if not await self._network.until(lambda: operation.is_done, timeout_ms):
            network = self._network
            why = network.blame() if network.view.brokers else f": {network.out_of_time(timeout_ms)}"
            detail = f"{operation.what} has not finished within {timeout_ms} ms{why}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)
        if operation.error is not None:
            raise operation.error

    async def _end_at_close(self, timeout_ms: int | None) -> None:
        """An open transaction is aborted, one on its way to a commit gets there; a prepared one is left alone."""
        transactions = self._transactions
        if transactions is None:
            return
        try:
            if transactions.state is State.PREPARING:
                await self._until_done(transactions.prepare(), timeout_ms)
            elif transactions.state in (State.OPEN, State.FAILED, State.ABORTING):
                await self._until_done(transactions.end(commit=False), timeout_ms)
            elif transactions.state is State.COMMITTING:
                await self._until_done(transactions.end(commit=True), timeout_ms)
        except KafkaError:
            pass  # the coordinator ends it when its time is up


class Transactional:
    """The part of Producer that is about transactions. As AsyncTransactional, but each call waits."""

    config: ProducerConfig
    _async: Any
    _call: Callable[[Coroutine[Any, Any, Any]], Any]

    def init_transactions(
        self, *, keep_prepared: bool = False, timeout_ms: int | None = None
    ) -> PreparedTransaction | None:
        found: PreparedTransaction | None = self._call(
            self._async.init_transactions(keep_prepared=keep_prepared, timeout_ms=timeout_ms)
        )
        return found

    def begin_transaction(self) -> None:
        self._call(self._async.begin_transaction())

    def send_offsets_to_transaction(
        self, offsets: Offsets, group: str | GroupMetadata | Any, *, timeout_ms: int | None = None
    ) -> None:
        self._call(self._async.send_offsets_to_transaction(offsets, group, timeout_ms=timeout_ms))

    def commit_transaction(self, *, timeout_ms: int | None = None) -> None:
        self._call(self._async.commit_transaction(timeout_ms=timeout_ms))

    def abort_transaction(self, *, timeout_ms: int | None = None) -> None:
        self._call(self._async.abort_transaction(timeout_ms=timeout_ms))

    def prepare_transaction(self, *, timeout_ms: int | None = None) -> PreparedTransaction:
        prepared: PreparedTransaction = self._call(self._async.prepare_transaction(timeout_ms=timeout_ms))
        return prepared

    def continue_as(self, transactional_id: str) -> None:
        self._call(self._async.continue_as(transactional_id))
        self.config = self._async.config

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits at the end of the block, aborts when it raises.

        >>> with producer.transaction():
        ...     producer.send("orders", b"42 apples")
        """
        self.begin_transaction()
        try:
            yield
            if self._async._state() in (State.OPEN, State.FAILED):
                self.commit_transaction()
        except BaseException:
            if self._async._state() in (State.OPEN, State.FAILED):
                self.abort_transaction()
            raise
