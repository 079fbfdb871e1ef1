"""The transactions of a producer: drives its TransactionManager over the network and waits for each step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ottla.client.admin.limits import with_limits
from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.client.core.arguments import Timeout, as_committed_offsets, as_timeout_ms
from ottla.client.core.interceptors import ProducerInterceptor, notify_acknowledgement
from ottla.client.core.network import Network
from ottla.client.core.settings import ProducerConfig
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.sender import Sender
from ottla.client.transactions.requests import GroupMetadata, group_metadata
from ottla.client.transactions.state import Operation, State
from ottla.client.transactions.transaction_manager import TransactionManager
from ottla.errors import ArgumentError, ErrorCode, KafkaError, OttlaError

Offsets = Mapping[Any, Any]
"""(topic, partition) -> the offset of the next record to read, or an object with offset, leader_epoch, metadata."""


class Rejections:
    """A context for code that queues records: if it raises inside a transaction, the commit has to fail."""

    __slots__ = ("_transactional",)

    def __init__(self, transactional: "ProducerTransactions") -> None:
        self._transactional = transactional

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self._transactional.note_rejected(error)


class ProducerTransactions:
    """Every producer has one. `manager` is None if the producer has no transactional.id."""

    def __init__(self, config: ProducerConfig, network: Network, accumulator: Accumulator, sender: Sender) -> None:
        self.config = config
        self.manager: TransactionManager | None = None
        self.rejections = Rejections(self)
        self.interceptors: Sequence[ProducerInterceptor] = ()
        self._network = network
        self._accumulator = accumulator
        self._sender = sender
        if config.transactional_id is not None:
            self.manager = self._new_manager()

    def _new_manager(self) -> TransactionManager:
        network = self._network
        manager = TransactionManager(
            self.config,
            network.view,
            transaction_version=lambda: network.feature("transaction.version"),
            has_unfinished=lambda: bool(self._accumulator.unfinished) or self._sender.is_writing,
            use_producer_id=self._sender.use_producer_id,
            on_change=lambda: self._accumulator.refuse(manager.refusal()),
            backoff=network.backoff,
            jitter=network.jitter,
        )
        self._sender.transactions = manager
        self._accumulator.refuse(manager.refusal())
        network.add(manager)  # after the sender, whose questions it answers
        return manager

    def require_manager(self, call: str) -> TransactionManager:
        if self.manager is None:
            raise OttlaError(
                f"{call} needs a transactional producer", "Set transactional.id when you create the producer."
            )
        return self.manager

    @property
    def can_end(self) -> bool:
        """Whether a transaction is open, or has failed and still has to be aborted."""
        return self.manager is not None and self.manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)

    def note_rejected(self, error: BaseException) -> None:
        """Records that send() raised this error: inside a transaction, the commit must then fail. Any thread."""
        if self.interceptors and isinstance(error, OttlaError):
            notify_acknowledgement(self.interceptors, None, error)
        manager = self.manager
        if manager is not None:
            self._network.on_loop(lambda: manager.record_rejected(error))

    async def init(self, *, keep_prepared: bool, timeout_ms: Timeout | None) -> PreparedTransaction | None:
        manager = self.require_manager("init_transactions()")
        if keep_prepared and not self.config.transaction_two_phase_commit_enable:
            raise OttlaError(
                "keep_prepared needs two-phase commit",
                "Set transaction.two.phase.commit.enable, here and on the brokers.",
            )
        self._network.start()
        wait_ms = self.wait_ms(timeout_ms)
        try:
            await self.until_done(manager.init(keep_prepared), wait_ms)
        except KafkaError as error:
            raise await with_limits(error, self._network, self.config) from None
        return manager.prepared

    async def send_offsets(
        self, offsets: Offsets, group: str | GroupMetadata | Any, timeout_ms: Timeout | None
    ) -> None:
        manager = self.require_manager("send_offsets_to_transaction()")
        wanted, wait_ms = as_committed_offsets(offsets), self.wait_ms(timeout_ms)
        await self.until_done(manager.send_offsets(group_metadata(group), wanted), wait_ms)

    async def end(self, *, commit: bool, timeout_ms: Timeout | None) -> None:
        manager = self.require_manager("commit_transaction()" if commit else "abort_transaction()")
        wait_ms = self.wait_ms(timeout_ms)
        await self.until_done(manager.end(commit=commit), wait_ms)

    async def prepare(self, timeout_ms: Timeout | None) -> PreparedTransaction:
        manager, wait_ms = self.require_manager("prepare_transaction()"), self.wait_ms(timeout_ms)
        await self.until_done(manager.prepare(), wait_ms)
        assert manager.prepared is not None
        return manager.prepared

    def continue_as(self, transactional_id: str) -> None:
        before = self.require_manager("continue_as()")
        if not transactional_id:
            raise ArgumentError(
                "continue_as() is not possible: the new id is empty", "Pass a non-empty transactional id."
            )
        if before.state not in (State.READY, State.PREPARED):
            problem = f"the producer is {before.state.value}"
            raise OttlaError(f"continue_as() is not possible: {problem}", "End or prepare the transaction first.")
        self._network.remove(before)
        self.config = replace(self.config, transactional_id=transactional_id)
        self.manager = self._new_manager()
        self.manager.copy_group_coordinators(before)

    def wait_ms(self, timeout_ms: Timeout | None) -> int:
        """How long a call may wait. Checked before the call changes anything."""
        return self.config.max_block_ms if timeout_ms is None else as_timeout_ms(timeout_ms)

    async def until_done(self, operation: Operation, wait_ms: int) -> None:
        if not await self._network.until(lambda: operation.is_done, wait_ms):
            network = self._network
            why = network.timeout_reason() if network.view.brokers else f": {network.out_of_time(wait_ms)}"
            detail = f"{operation.what} has not finished within {wait_ms} ms{why}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)
        if operation.error is not None:
            raise operation.error

    async def end_at_close(self, timeout_ms: int | None) -> None:
        """Aborts an open transaction and completes one that is being committed. A prepared one stays prepared."""
        manager, wait_ms = self.manager, self.wait_ms(timeout_ms)
        if manager is None:
            return
        try:
            if manager.state is State.PREPARING:
                await self.until_done(manager.prepare(), wait_ms)
            elif manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING):
                await self.until_done(manager.end(commit=False), wait_ms)
            elif manager.state is State.COMMITTING:
                await self.until_done(manager.end(commit=True), wait_ms)
        except KafkaError:
            pass  # the coordinator aborts it when transaction.timeout.ms is over
