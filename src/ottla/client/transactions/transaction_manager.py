"""Decides what a transactional producer sends to its coordinators, and handles the responses (KIP-98). Pure.

FindCoordinator, InitProducerId, then for each transaction: add partitions and groups, commit offsets, EndTxn. Up to
transaction.version 1 partitions and groups are added by requests; from 2 on, writing to them adds them (KIP-890). One
request is in flight at a time. Records are sent by the Sender, which asks here whether a batch may be sent.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ottla.checks import moved
from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.coordinator_lookup import GROUP_KEY, TRANSACTION_KEY
from ottla.client.core.model import CommittedOffset
from ottla.client.core.polling import ANY_NODE, Poll, Request
from ottla.client.core.settings import ProducerConfig
from ottla.client.transactions import requests
from ottla.client.transactions.errors import (
    TransactionAbortable,
    TransactionFatal,
    Verdict,
    fenced,
    is_rejected,
    judge,
)
from ottla.client.transactions.requests import GroupMetadata
from ottla.client.transactions.state import (
    HINTS,
    TRANSITIONS,
    WRITING,
    Coordinators,
    OpenTime,
    Operation,
    PendingOffsets,
    State,
)
from ottla.errors import ErrorCode, KafkaError, OttlaError, error_text, raise_for
from ottla.net.backoff import Backoff, Retry
from ottla.protocol.api import ApiKey
from ottla.protocol.wire_values import TRANSACTION_V2
from ottla.types import TopicPartition


class TransactionManager:
    """The transaction state of one producer.

    >>> transactions.init()                   # each call returns an Operation, done after some polls
    >>> transactions.begin()
    >>> transactions.send_offsets(GroupMetadata("copier"), {TopicPartition("orders", 0): CommittedOffset(42)})
    >>> transactions.end(commit=True)
    """

    def __init__(
        self,
        config: ProducerConfig,
        view: ClusterView,
        *,
        transaction_version: Callable[[], int],
        has_unfinished: Callable[[], bool],
        use_producer_id: Callable[[int, int], None],
        on_change: Callable[[], None] = lambda: None,
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`has_unfinished`: are records unsent or in flight? `use_producer_id` gets every new id and epoch."""
        assert config.transactional_id is not None
        self.transactional_id = config.transactional_id
        self.transaction_version = transaction_version
        self.state = State.UNINITIALIZED
        self.error: KafkaError | None = None
        """Why the transaction must be aborted, or the producer is unusable."""
        self.producer_id = self.producer_epoch = -1
        self.prepared: PreparedTransaction | None = None
        self._config = config
        self._view = view
        self._has_unfinished = has_unfinished
        self._use_producer_id = use_producer_id
        self._on_change = on_change
        self._backoff = backoff
        self._adds_implicitly = False
        """Writing to a partition adds it to the transaction (transaction.version 2, KIP-890)."""
        self._is_started = False
        """The coordinator may know of the transaction, so it needs an EndTxn."""
        self._partitions: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._new_partitions: set[TopicPartition] = set()
        self._new_groups: set[str] = set()
        self._offsets: list[PendingOffsets] = []
        self._needs_new_epoch = False
        """A batch failed, so the next sequence is unknown and the next transaction needs a new epoch (KIP-360)."""
        self._open_time = OpenTime(
            None if config.transaction_two_phase_commit_enable else config.transaction_timeout_ms
        )
        self._operation: Operation | None = None
        self._keep_prepared = False
        self._coordinators = Coordinators()
        self._is_waiting = False
        self._retry = Retry(backoff, jitter)

    # --- called by the user -------------------------------------------------------------------------------

    def init(self, keep_prepared: bool = False) -> Operation:
        """Gets a producer id and epoch. Fences older producers of this transactional id, ends their transaction."""
        if self.state is State.INITIALIZING and self._operation is not None:
            return self._operation  # the last call timed out: this one continues to wait
        self._expect("init_transactions()", State.UNINITIALIZED)
        self._keep_prepared = keep_prepared
        self._change(State.INITIALIZING)
        self._operation = Operation("init_transactions()")
        return self._operation

    def copy_group_coordinators(self, other: "TransactionManager") -> None:
        """Takes over the group coordinators that another producer on the same connections has found."""
        self._coordinators = other._coordinators.of_groups()  # noqa: SLF001 - the same class

    def adopt(self, prepared: PreparedTransaction) -> None:
        """Continues a prepared transaction of another producer: adds offsets to it, then ends it."""
        self._expect("adopt()", State.UNINITIALIZED)
        self.producer_id, self.producer_epoch = prepared.producer_id, prepared.producer_epoch
        self._adds_implicitly = self.transaction_version() >= TRANSACTION_V2
        self._is_started = not prepared.is_empty
        self._open_time = OpenTime(None)  # it began elsewhere, at another time
        self._change(State.IN_TRANSACTION)

    def begin(self) -> None:
        self._expect("begin_transaction()", State.READY)
        self._adds_implicitly = self.transaction_version() >= TRANSACTION_V2
        self._forget_transaction()
        self._change(State.IN_TRANSACTION)

    def send_offsets(self, group: GroupMetadata, offsets: Mapping[TopicPartition, CommittedOffset]) -> Operation:
        self._expect("send_offsets_to_transaction()", State.IN_TRANSACTION)
        operation = Operation("send_offsets_to_transaction()")
        if not offsets:
            operation.finish()
            return operation
        if not self._adds_implicitly and group.group_id not in self._groups:
            self._new_groups.add(group.group_id)
        self._offsets.append(PendingOffsets(operation, group, dict(offsets)))
        return operation

    def prepare(self) -> Operation:
        """Flushes everything. Afterwards the transaction can only be ended, here or by another process (KIP-939)."""
        if self.state is State.PREPARING and self._operation is not None:
            return self._operation
        self._expect("prepare_transaction()", State.IN_TRANSACTION)
        self._change(State.PREPARING)
        self._operation = Operation("prepare_transaction()")
        return self._operation

    def end(self, *, commit: bool) -> Operation:
        """Commits or aborts as soon as no records are in flight."""
        call = "commit_transaction()" if commit else "abort_transaction()"
        ending = State.COMMITTING if commit else State.ABORTING
        if self.state is ending and self._operation is not None:
            return self._operation
        self._expect(call, State.IN_TRANSACTION, State.PREPARED, *([] if commit else [State.ABORTABLE_ERROR]))
        if not commit:
            self._fail_offsets(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted"))
        self._change(ending)
        self._operation = Operation(call)
        return self._operation

    def _expect(self, call: str, *allowed: State) -> None:
        if self.state in allowed:
            return
        if self.error is not None:
            raise self.error
        already = self.state is State.READY and call == "init_transactions()"
        hint = "Call it only once." if already else HINTS.get(self.state, "Wait for the call in progress.")
        raise OttlaError(f"{call} cannot be called while the producer is {self.state.value}", hint)

    # --- called by the sender -----------------------------------------------------------------------------

    def refusal(self) -> Exception | None:
        """Why send() has to raise now, or None."""
        if self.state is State.IN_TRANSACTION:
            return None
        if self.error is not None:
            return self.error
        try:
            self._expect("send()", State.IN_TRANSACTION)
        except OttlaError as refused:
            return refused
        return None

    @property
    def is_completing(self) -> bool:
        """The transaction is about to end, so batches do not linger."""
        return self.state in (State.PREPARING, State.COMMITTING, State.ABORTING)

    @property
    def drops_records(self) -> bool:
        """Queued records are dropped: they will never be committed."""
        return self.state in (State.ABORTING, State.ABORTABLE_ERROR)

    @property
    def produce_version_max(self) -> int | None:
        """The highest version of Produce to use: from version 12 on a write adds its partition (KIP-890)."""
        return None if self._adds_implicitly else requests.PRODUCE_WITHOUT_ADDING

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether a batch may be sent to this partition now. If not, adds the partition first."""
        if self.state not in WRITING:
            return False
        if self._adds_implicitly or partition in self._partitions:
            self._is_started = True
            return True
        self._new_partitions.add(partition)
        return False

    def batch_failed(self, error: KafkaError, verdict: Verdict, *, was_numbered: bool) -> None:
        """A batch of the transaction failed, so the transaction cannot be committed."""
        if was_numbered:
            self._needs_new_epoch = True
        if self.state in WRITING:
            self._fail(self._open_time.explain(error), verdict)

    def record_rejected(self, error: BaseException) -> None:
        """send() raised, so the transaction lacks a record and cannot be committed, as in the Java client."""
        if self.state is State.IN_TRANSACTION:
            code = error.code if isinstance(error, KafkaError) else ErrorCode.INVALID_RECORD
            detail = f"send() rejected a record of the transaction: {error_text(error)}"
            self._fail(KafkaError(code, detail), Verdict.ABORT)

    # --- polling ------------------------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        self._open_time.note(now, is_started=self._is_started)
        if self._is_waiting or self.state in (State.UNINITIALIZED, State.READY, State.PREPARED, State.FATAL_ERROR):
            return poll
        if not self._retry.is_due(now):
            poll.wake_by(self._retry.at)
            return poll
        request = self._next_request()
        if request is None:
            return poll
        if request.destination != ANY_NODE and request.destination not in self._view.brokers:
            # It joined after our last metadata update, or it has left and another broker coordinates by now.
            self._view.request_update()
            self._coordinators.forget_node(request.destination)
            self._retry.at = now + self._backoff.initial_ms
            poll.wake_by(self._retry.at)
            return poll
        self._is_waiting = True
        poll.requests.append(request)
        return poll

    def _next_request(self) -> Request | None:
        if self.state is State.INITIALIZING:
            return self._at_coordinator(self._ask_producer_id)
        # These requests are repeated until they are answered, even before an abort: the coordinator may have added
        # the partitions although the response was lost.
        if self._new_partitions:
            return self._at_coordinator(self._ask_partitions)
        if self._new_groups:
            return self._at_coordinator(self._ask_group)
        if self._offsets and self.state in WRITING:
            return self._ask_offsets(self._offsets[0])
        if self.is_completing and not self._has_unfinished():
            if self.state is State.PREPARING:
                self._finish_preparing()
                return None
            if self._is_started:
                return self._at_coordinator(self._ask_end)
            if self.state is State.ABORTING and self._needs_new_epoch:
                return self._at_coordinator(self._ask_producer_id)
            self._finish_transaction()
        return None

    def _at_coordinator(self, ask: Callable[[int], Request]) -> Request:
        coordinator = self._coordinators.find()
        return self._find(None) if coordinator is None else ask(coordinator)

    def _request(
        self,
        destination: int,
        api_key: ApiKey,
        build: Callable[[int], Any],
        on_answer: Callable[[Any], None],
        what: str,
        *,
        group_id: str | None = None,
        max_version: int | None = None,
        on_rejected: Callable[[], None] = lambda: None,
        needed_to_abort: bool = False,
    ) -> Request:
        """`on_answer` raises KafkaError for an error in the response. `on_rejected` is called if the coordinator has
        not added what was requested, and the transaction is over anyway."""

        def on_response(response: Any, version: int, now: int) -> None:
            self._is_waiting = False
            try:
                on_answer(response)
            except KafkaError as error:
                if self.state not in WRITING and is_rejected(error.code):
                    on_rejected()
                self._on_error(KafkaError(error.code, error.detail or what), now, group_id, needed_to_abort)
            else:
                self._retry.succeeded()

        def on_failure(error: KafkaError, now: int) -> None:
            self._is_waiting = False
            self._on_error(error, now, group_id, needed_to_abort)

        return Request(destination, api_key, build, on_response, on_failure, max_version=max_version)

    def _on_error(self, error: KafkaError, now: int, group_id: str | None, needed_to_abort: bool) -> None:
        code = fenced(error.code)
        verdict = judge(code)
        self._open_time.note(now, is_started=self._is_started)
        if self._adds_implicitly and self.state in WRITING and self._open_time.may_explain(code):
            # From transaction.version 2 on, aborting tells a timeout from a newer producer: it returns the epoch that
            # the coordinator's own abort has set, or PRODUCER_FENCED (KIP-890).
            verdict = Verdict.ABORT
        if verdict is Verdict.FIND_AGAIN:
            self._coordinators.forget(group_id)
        if verdict in (Verdict.RETRY, Verdict.FIND_AGAIN):
            is_concurrent = code == ErrorCode.CONCURRENT_TRANSACTIONS
            self._retry.failed(now, at_most_ms=requests.CONCURRENT_BACKOFF_MS if is_concurrent else None)
            return
        if self.state in (State.INITIALIZING, State.ABORTING) and verdict is Verdict.ABORT:
            if not needed_to_abort:
                return  # it belongs to the transaction that is being aborted
            verdict = Verdict.FATAL  # aborting again would not help
        self._fail(self._open_time.explain(KafkaError(code, error.detail)), verdict)

    # --- requests and responses ---------------------------------------------------------------------------

    def _find(self, group_id: str | None) -> Request:
        def on_answer(response: Any) -> None:
            self._coordinators.found(group_id, requests.coordinator_in(response))

        key = self.transactional_id if group_id is None else group_id
        key_type = TRANSACTION_KEY if group_id is None else GROUP_KEY
        what = f"finding the coordinator of {key}"
        return self._request(
            ANY_NODE,
            ApiKey.FIND_COORDINATOR,
            requests.find_coordinator(key, key_type),
            on_answer,
            what,
            group_id=group_id,
            needed_to_abort=group_id is None,
        )

    def _ask_producer_id(self, coordinator: int) -> Request:
        continues = self.state is not State.INITIALIZING
        build = requests.init_producer_id(
            self._config, self.producer_id, self.producer_epoch, keep_prepared=self._keep_prepared and not continues
        )
        what = f"initializing {self.transactional_id}"
        two_phase = self._config.transaction_two_phase_commit_enable
        return self._request(
            coordinator,
            ApiKey.INIT_PRODUCER_ID,
            build,
            self._on_producer_id,
            what,
            max_version=None if two_phase else requests.INIT_WITHOUT_TWO_PHASE,
            needed_to_abort=True,
        )

    def _on_producer_id(self, response: Any) -> None:
        raise_for(response.error_code, "")
        self._take_producer_id(response.producer_id, response.producer_epoch)
        if self.state is State.ABORTING:
            self._finish_transaction()
            return
        self._adds_implicitly = self.transaction_version() >= TRANSACTION_V2
        if response.ongoing_txn_producer_id >= 0:
            ids = response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
            self.prepared = PreparedTransaction(self.transactional_id, *ids)
            self._is_started = True
            self._finish_operation(State.PREPARED)
        else:
            self._finish_operation(State.READY)

    def _ask_partitions(self, coordinator: int) -> Request:
        asked = sorted(self._new_partitions)

        def on_answer(response: Any) -> None:
            for partition, code in requests.partitions_in(response).items():
                raise_for(code, f"adding {partition} to the transaction")
            self._new_partitions.difference_update(asked)
            self._partitions.update(asked)
            self._is_started = True

        return self._request(
            coordinator,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            requests.add_partitions(self.transactional_id, self.producer_id, self.producer_epoch, asked),
            on_answer,
            "adding partitions to the transaction",
            max_version=requests.ADD_PARTITIONS_OF_CLIENTS,
            on_rejected=lambda: self._new_partitions.difference_update(asked),
        )

    def _ask_group(self, coordinator: int) -> Request:
        group_id = min(self._new_groups)

        def on_answer(response: Any) -> None:
            raise_for(response.error_code, "")
            self._new_groups.discard(group_id)
            self._groups.add(group_id)
            self._is_started = True

        return self._request(
            coordinator,
            ApiKey.ADD_OFFSETS_TO_TXN,
            requests.add_offsets(self.transactional_id, self.producer_id, self.producer_epoch, group_id),
            on_answer,
            f"adding group {group_id} to the transaction",
            on_rejected=lambda: self._new_groups.discard(group_id),
        )

    def _ask_offsets(self, pending: PendingOffsets) -> Request:
        group_id = pending.group.group_id
        coordinator = self._coordinators.find(group_id)
        if coordinator is None:
            return self._find(group_id)
        self._is_started = True

        def on_answer(response: Any) -> None:
            for partition, code in requests.offsets_in(response).items():
                raise_for(code, f"committing the offset of {partition} for group {group_id}")
            if pending in self._offsets:
                self._offsets.remove(pending)
                pending.operation.finish()

        return self._request(
            coordinator,
            ApiKey.TXN_OFFSET_COMMIT,
            requests.commit_offsets(
                self.transactional_id, self.producer_id, self.producer_epoch, pending.group, pending.offsets
            ),
            on_answer,
            f"committing offsets for group {group_id}",
            group_id=group_id,
            max_version=requests.OFFSETS_ADDING if self._adds_implicitly else requests.OFFSETS_WITHOUT_ADDING,
        )

    def _ask_end(self, coordinator: int) -> Request:
        commit = self.state is State.COMMITTING

        def on_answer(response: Any) -> None:
            raise_for(response.error_code, "")
            self._is_started = False
            if self._adds_implicitly and response.producer_id >= 0:
                self._take_producer_id(response.producer_id, response.producer_epoch)
            if self.state is State.ABORTING and self._needs_new_epoch:
                return  # the next poll requests a new epoch
            self._finish_transaction()

        return self._request(
            coordinator,
            ApiKey.END_TXN,
            requests.end(self.transactional_id, self.producer_id, self.producer_epoch, commit),
            on_answer,
            f"{'committing' if commit else 'aborting'} the transaction of {self.transactional_id}",
            max_version=None if self._adds_implicitly else requests.END_WITHOUT_NEW_EPOCH,
            needed_to_abort=True,
        )

    # --- changes ------------------------------------------------------------------------------------------

    def _take_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._needs_new_epoch = False
        self._use_producer_id(producer_id, producer_epoch)

    def _finish_preparing(self) -> None:
        self.prepared = PreparedTransaction(
            self.transactional_id, self.producer_id, self.producer_epoch, not self._is_started
        )
        self._finish_operation(State.PREPARED)

    def _finish_transaction(self) -> None:
        self._forget_transaction()
        self.error = None
        self._finish_operation(State.READY)

    def _forget_transaction(self) -> None:
        self._is_started = False
        self.prepared = None
        for each in (self._partitions, self._groups, self._new_partitions, self._new_groups):
            each.clear()

    def _finish_operation(self, state: State) -> None:
        self._change(state)
        operation, self._operation = self._operation, None
        if operation is not None:
            operation.finish()

    def _fail(self, error: KafkaError, verdict: Verdict) -> None:
        if self.state is State.FATAL_ERROR:
            return
        if verdict is Verdict.FATAL:
            is_fenced = error.code == ErrorCode.PRODUCER_FENCED
            hint = "another producer has fenced this one" if is_fenced else "close the producer"
            self.error = TransactionFatal(error.code, f"{error.detail} ({self.transactional_id}: {hint})")
            self._change(State.FATAL_ERROR)
        elif self.state is State.ABORTABLE_ERROR:
            return
        else:
            self.error = TransactionAbortable(error.code, f"{error.detail} (abort the transaction)")
            self._change(State.ABORTABLE_ERROR)
        operation, self._operation = self._operation, None
        if operation is not None:
            operation.finish(self.error)
        self._fail_offsets(self.error)

    def _fail_offsets(self, error: KafkaError) -> None:
        failed, self._offsets = self._offsets, []
        for each in failed:
            each.operation.finish(error)

    def _change(self, state: State) -> None:
        self.state = moved(TRANSITIONS, "a producer", self.state, state)
        self._on_change()
