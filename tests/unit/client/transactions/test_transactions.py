"""The transaction manager: which requests it sends, in which order, and how it handles each response."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.core.model import CommittedOffset
from ottla.client.core.settings import ProducerConfig, build
from ottla.client.transactions.errors import TransactionAbortable, TransactionFatal, Verdict, judge, judge_produce
from ottla.client.transactions.requests import GroupMetadata
from ottla.client.transactions.state import Operation, State
from ottla.client.transactions.transaction_manager import TransactionManager
from ottla.errors import ConfigError, ErrorCode, KafkaError, OttlaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from ottla.protocol.messages.end_txn import EndTxnResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdResponse
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from ottla.types import TopicPartition

PLACE = TopicPartition("t", 0)
FIND, INIT = ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID
ADD, ADD_GROUP, OFFSETS, END = (
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
BY_REQUEST, BY_WRITING = 1, 2
HIGHEST = {FIND: 6, INIT: 6, ADD: 5, ADD_GROUP: 4, OFFSETS: 6, END: 5}
LOST = "lost"


class View:
    """The cluster: one broker, or none before the first metadata."""

    def __init__(self) -> None:
        self.brokers: dict[int, Any] = {1: object()}
        self.updates = 0

    def request_update(self) -> None:
        self.updates += 1


class Desk:
    """A transaction manager and a scripted coordinator, which answers NONE unless an error is planned for a request."""

    def __init__(self, version: int = BY_WRITING, **settings: Any) -> None:
        self.now = 1_000
        self.view = View()
        self.version = version
        self.unfinished = False
        self.ids: list[tuple[int, int]] = []
        self.asked: list[ApiKey] = []
        self.messages: list[Any] = []
        self.planned: dict[ApiKey, list[ErrorCode | str]] = {}
        self.epoch = -1
        self.ongoing = -1
        config = build(ProducerConfig, {"transactional.id": "x", **settings}, {})
        self.transactions = TransactionManager(
            config,
            self.view,  # type: ignore[arg-type]
            transaction_version=lambda: self.version,
            has_unfinished=lambda: self.unfinished,
            use_producer_id=lambda *ids: self.ids.append(ids),
            backoff=Backoff(100, 1000),
        )

    def plan(self, api: ApiKey, *answers: ErrorCode | str) -> None:
        self.planned[api] = list(answers)

    def run(self, operation: Operation | None = None) -> Operation | None:
        """Polls and answers until there is nothing to do; the clock moves when the manager waits."""
        for _ in range(100):
            poll = self.transactions.poll(self.now)
            if not poll.requests:
                if poll.wake_at is None:
                    return operation
                self.now = max(self.now + 1, poll.wake_at)
            for request in poll.requests:
                self.answer(request)
        raise AssertionError("it never ends")

    def answer(self, request: Any) -> None:
        api = ApiKey(request.api_key)
        highest = HIGHEST[api]
        version = highest if request.max_version is None else min(highest, request.max_version)
        message = request.build(version)
        message.encode(version)  # can be encoded in that version
        self.asked.append(api)
        self.messages.append((version, message))
        planned = self.planned.get(api)
        code = planned.pop(0) if planned else ErrorCode.NONE
        if code == LOST:
            request.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION, "connection lost"), self.now)
        else:
            request.on_response(self.response(api, message, version, code), version, self.now)

    def response(self, api: ApiKey, message: Any, version: int, code: Any) -> Any:
        if api == FIND:
            found = FindCoordinatorResponse.Coordinator(key="x", node_id=1, host="h", port=9, error_code=code)
            return FindCoordinatorResponse(coordinators=[found])
        if api == INIT:
            self.epoch += code == ErrorCode.NONE
            ids = (
                {"ongoing_txn_producer_id": 70, "ongoing_txn_producer_epoch": self.ongoing} if self.ongoing > 0 else {}
            )
            return InitProducerIdResponse(error_code=code, producer_id=70, producer_epoch=self.epoch, **ids)
        if api == ADD:
            topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
            each = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=[
                    topic(
                        name=t.name,
                        results_by_partition=[each(partition_index=i, partition_error_code=code) for i in t.partitions],
                    )
                    for t in message.v3_and_below_topics
                ]
            )
        if api == ADD_GROUP:
            return AddOffsetsToTxnResponse(error_code=code)
        if api == OFFSETS:
            place = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
            topic_result = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name="t", partitions=[place])
            return TxnOffsetCommitResponse(topics=[topic_result])
        if version >= 5:
            self.epoch += code == ErrorCode.NONE
            return EndTxnResponse(error_code=code, producer_id=70, producer_epoch=self.epoch)
        return EndTxnResponse(error_code=code)

    def state(self) -> State:
        return self.transactions.state

    # --- stories --------------------------------------------------------------------------------------------

    def start(self) -> "Desk":
        self.finish(self.transactions.init())
        self.asked.clear()
        return self

    def begin(self) -> "Desk":
        self.start()
        self.transactions.begin()
        return self

    def prepare(self) -> "Desk":
        self.finish(self.transactions.prepare())
        return self

    def finish(self, operation: Operation) -> None:
        self.run()
        assert operation.is_done
        if operation.error is not None:
            raise operation.error

    def write(self) -> None:
        """The sender asks whether a batch may be sent to t-0."""
        if not self.transactions.may_send(PLACE):
            self.run()
            assert self.transactions.may_send(PLACE)

    def end(self, commit: bool = True) -> None:
        self.finish(self.transactions.end(commit=commit))

    def offsets(self) -> Operation:
        return self.transactions.send_offsets(GroupMetadata("g"), {PLACE: CommittedOffset(5)})


# --- order of requests --------------------------------------------------------------------------------------


def test_partitions_and_groups_are_added_by_requests_up_to_version_1() -> None:
    desk = Desk(BY_REQUEST).begin()
    desk.write()
    desk.finish(desk.offsets())
    desk.end()
    assert desk.asked == [ADD, ADD_GROUP, FIND, OFFSETS, END]
    assert [version for version, _ in desk.messages[-5:]] == [3, 4, 6, 4, 4]
    assert desk.transactions.produce_version_max == 11
    assert desk.ids == [(70, 0)], "one epoch for all transactions"


def test_from_version_2_on_writes_add_partitions_and_each_transaction_has_its_epoch() -> None:
    desk = Desk(BY_WRITING).begin()
    desk.write()
    desk.finish(desk.offsets())
    desk.end()
    assert desk.asked == [FIND, OFFSETS, END]
    assert desk.transactions.produce_version_max is None
    assert desk.ids == [(70, 0), (70, 1)]
    desk.transactions.begin()
    desk.finish(desk.offsets())
    assert desk.messages[-1][1].producer_epoch == 1
    assert desk.messages[-1][0] == 5, "names, not ids"


def test_the_transaction_version_is_checked_for_each_transaction() -> None:
    desk = Desk(BY_REQUEST).begin()
    desk.version = BY_WRITING
    desk.write()
    desk.end()
    desk.transactions.begin()
    desk.write()
    desk.end()
    assert desk.asked == [ADD, END, END]
    assert [version for version, _ in desk.messages[-2:]] == [4, 5]


@pytest.mark.parametrize("version", [BY_REQUEST, BY_WRITING])
@pytest.mark.parametrize("commit", [True, False])
def test_an_empty_transaction_ends_without_a_request(version: int, commit: bool) -> None:
    desk = Desk(version).begin()
    desk.end(commit)
    assert desk.asked == []
    assert desk.transactions.state is State.READY


def test_the_end_waits_for_records_in_flight() -> None:
    desk = Desk().begin()
    desk.write()
    desk.unfinished = True
    operation = desk.transactions.end(commit=True)
    desk.run()
    assert not operation.is_done
    assert desk.asked == []
    desk.unfinished = False
    desk.finish(operation)


def test_one_request_is_in_flight_at_a_time() -> None:
    desk = Desk()
    desk.transactions.init()
    assert len(desk.transactions.poll(desk.now).requests) == 1
    assert desk.transactions.poll(desk.now + 10_000).requests == []


def test_a_coordinator_missing_in_the_metadata_is_waited_for() -> None:
    desk = Desk()
    desk.view.brokers.clear()
    operation = desk.transactions.init()
    (request,) = desk.transactions.poll(desk.now).requests
    desk.answer(request)
    poll = desk.transactions.poll(desk.now)
    assert not poll.requests
    assert poll.wake_at == desk.now + 100
    assert desk.view.updates == 1
    desk.view.brokers[1] = object()
    desk.finish(operation)


def test_a_coordinator_that_has_left_is_looked_up_again() -> None:
    """It died between two requests, so none of them failed: only the metadata shows it."""
    desk = Desk().begin()
    desk.write()
    desk.asked.clear()
    del desk.view.brokers[1]
    operation = desk.transactions.end(commit=True)
    assert desk.transactions.poll(desk.now).requests == []
    desk.now += 100
    (request,) = desk.transactions.poll(desk.now).requests
    assert request.api_key == FIND
    assert desk.view.updates == 1
    desk.view.brokers[1] = object()
    desk.answer(request)
    desk.finish(operation)
    assert desk.asked == [FIND, END]


# --- calls in the wrong order ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "call", "hint"),
    [
        (lambda desk: desk, lambda t: t.begin(), "init_transactions"),
        (lambda desk: desk, lambda t: t.end(commit=True), "init_transactions"),
        (Desk.start, lambda t: t.init(), "once"),
        (Desk.start, lambda t: t.end(commit=True), "begin_transaction"),
        (Desk.start, lambda t: t.end(commit=False), "begin_transaction"),
        (Desk.start, lambda t: t.send_offsets(GroupMetadata("g"), {PLACE: CommittedOffset(1)}), "begin_transaction"),
        (Desk.start, lambda t: t.prepare(), "begin_transaction"),
        (Desk.begin, lambda t: t.begin(), "Commit or abort"),
        (lambda desk: desk.begin().prepare(), lambda t: t.begin(), "prepared"),
        (
            lambda desk: desk.begin().prepare(),
            lambda t: t.send_offsets(GroupMetadata("g"), {PLACE: CommittedOffset(1)}),
            "prepared",
        ),
        (Desk.begin, lambda t: (t.prepare(), t.end(commit=True)), "Wait"),
        (Desk.begin, lambda t: (t.end(commit=True), t.end(commit=False)), "Wait"),
    ],
)
def test_calls_in_the_wrong_order_name_the_call_to_make_first(
    prepare: Callable[[Desk], Desk], call: Callable[[TransactionManager], Any], hint: str
) -> None:
    """Spec: E1."""
    desk = prepare(Desk())
    with pytest.raises(OttlaError) as caught:
        call(desk.transactions)
    assert hint in caught.value.hint


def test_records_are_refused_outside_a_transaction() -> None:
    desk = Desk()
    refused = desk.transactions.refusal()
    assert isinstance(refused, OttlaError)
    assert "init_transactions()" in refused.hint
    desk.start()
    refused = desk.transactions.refusal()
    assert isinstance(refused, OttlaError)
    assert "begin_transaction()" in refused.hint
    desk.transactions.begin()
    assert desk.transactions.refusal() is None
    desk.transactions.end(commit=True)
    assert desk.transactions.refusal() is not None


# --- errors -----------------------------------------------------------------------------------------------------

RETRIED = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    LOST,
]


@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize("api", [INIT, ADD, ADD_GROUP, OFFSETS, END])
def test_retriable_errors_are_retried(api: ApiKey, code: ErrorCode | str) -> None:
    """The retriable codes 14, 15, 16, 51, 3, 7, and a lost connection."""
    desk = Desk(BY_REQUEST)
    desk.plan(api, code, code)
    desk.begin()
    desk.write()
    desk.finish(desk.offsets())
    desk.end()
    sent = [ApiKey(message.api_key) for _, message in desk.messages]
    assert sent.count(api) == 3
    finds_again = code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, LOST)
    if finds_again or code == ErrorCode.REQUEST_TIMED_OUT:
        assert sent.count(FIND) == 4, "the coordinator was looked up again each time"
    else:
        assert sent.count(FIND) == 2


def test_the_backoff_doubles_but_stays_short_for_concurrent_transactions() -> None:
    desk = Desk()
    desk.plan(INIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    desk.start()
    assert desk.now >= 1_000 + 100 + 200
    desk.transactions.begin()
    desk.write()
    before = desk.now
    desk.plan(END, *[ErrorCode.CONCURRENT_TRANSACTIONS] * 5)
    desk.end()
    assert desk.now - before <= 5 * 21


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
@pytest.mark.parametrize("api", [INIT, ADD, ADD_GROUP, OFFSETS, END])
def test_fatal_errors_of_a_coordinator_make_the_producer_unusable(api: ApiKey, code: ErrorCode) -> None:
    """The codes 90, 53, 48, 49, and 47 from a coordinator."""
    desk = Desk(BY_REQUEST)
    desk.plan(api, code)

    def one_transaction() -> None:
        desk.begin()
        desk.transactions.may_send(PLACE)
        desk.run()
        desk.finish(desk.offsets())
        desk.end()

    with pytest.raises(TransactionFatal) as caught:
        one_transaction()
    expected = ErrorCode.PRODUCER_FENCED if code == ErrorCode.INVALID_PRODUCER_EPOCH else code
    assert caught.value.code == expected
    assert desk.transactions.state is State.FATAL_ERROR
    for call in (desk.transactions.begin, desk.transactions.init, lambda: desk.transactions.end(commit=False)):
        with pytest.raises(TransactionFatal):
            call()
    assert isinstance(desk.transactions.refusal(), TransactionFatal)
    assert desk.transactions.poll(desk.now + 100_000).requests == []


ABORTABLE = [
    *[(BY_REQUEST, api, ErrorCode.TRANSACTION_ABORTABLE) for api in (ADD, ADD_GROUP)],
    (BY_REQUEST, ADD, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (BY_REQUEST, ADD, ErrorCode.UNKNOWN_PRODUCER_ID),
    (BY_REQUEST, ADD_GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    *[
        (version, OFFSETS, code)
        for version in (BY_REQUEST, BY_WRITING)
        for code in (
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
        )
    ],
]


@pytest.mark.parametrize(("version", "api", "code"), ABORTABLE)
def test_after_an_abortable_error_only_abort_is_allowed(version: int, api: ApiKey, code: ErrorCode) -> None:
    """The codes 120, 59, 29, 30, and 22, 25, 82 from TxnOffsetCommit."""
    desk = Desk(version).begin()
    desk.plan(api, code)

    def write_and_commit_offsets() -> None:
        desk.transactions.may_send(PLACE)
        desk.run()
        desk.finish(desk.offsets())

    with pytest.raises(TransactionAbortable) as caught:
        write_and_commit_offsets()
    assert caught.value.code == code
    assert desk.transactions.drops_records
    for call in (desk.transactions.begin, lambda: desk.transactions.end(commit=True), desk.offsets):
        with pytest.raises(TransactionAbortable):
            call()
    assert not desk.transactions.may_send(PLACE)
    desk.end(commit=False)
    assert desk.transactions.state is State.READY
    assert desk.transactions.error is None
    desk.transactions.begin()
    desk.write()
    desk.end()


def test_a_commit_refused_as_abortable_is_aborted() -> None:
    desk = Desk().begin()
    desk.write()
    desk.plan(END, ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(TransactionAbortable):
        desk.end()
    desk.end(commit=False)
    assert [message.committed for _, message in desk.messages[-2:]] == [True, False]


def test_a_failed_batch_fails_the_transaction_and_old_protocols_request_a_new_epoch() -> None:
    """After the abort the brokers' sequence numbers are unknown, so a new epoch is needed (KIP-360)."""
    for version, asked in ((BY_REQUEST, [ADD, END, INIT]), (BY_WRITING, [END])):
        desk = Desk(version).begin()
        desk.write()
        lost = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "never stored")
        desk.transactions.batch_failed(lost, Verdict.ABORT, was_numbered=True)
        with pytest.raises(TransactionAbortable):
            desk.end()
        desk.end(commit=False)
        assert desk.asked == asked
        assert desk.ids == [(70, 0), (70, 1)]
    assert desk.messages[-1][1].producer_epoch == 0


def test_the_new_epoch_is_requested_with_the_old_one() -> None:
    """KIP-360."""
    desk = Desk(BY_REQUEST).begin()
    desk.write()
    desk.transactions.batch_failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT), Verdict.ABORT, was_numbered=True)
    desk.end(commit=False)
    _, init = desk.messages[-1]
    assert (init.producer_id, init.producer_epoch) == (70, 0)


def test_an_unanswered_add_partitions_is_repeated_before_the_abort() -> None:
    """Otherwise the coordinator could keep a transaction open that the producer believes never began."""
    desk = Desk(BY_REQUEST).begin()
    desk.transactions.may_send(PLACE)
    (request,) = desk.transactions.poll(desk.now).requests
    request.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost"), desk.now)
    desk.end(commit=False)
    assert desk.asked == [FIND, ADD, END]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
def test_a_retriable_error_does_not_mean_that_the_lost_request_was_rejected(code: ErrorCode) -> None:
    """Without the abort, the coordinator would abort at the timeout and fence the producer."""
    desk = Desk(BY_REQUEST).begin()
    desk.transactions.may_send(PLACE)
    (request,) = desk.transactions.poll(desk.now).requests
    request.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost"), desk.now)
    desk.plan(ADD, code)
    desk.end(commit=False)
    assert [api for api in desk.asked if api != FIND] == [ADD, ADD, END]


def test_a_rejected_partition_does_not_delay_the_abort() -> None:
    desk = Desk(BY_REQUEST).begin()
    desk.transactions.may_send(PLACE)
    operation = desk.transactions.end(commit=False)
    desk.plan(ADD, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    desk.finish(operation)
    assert desk.asked == [ADD]


def test_pending_offsets_fail_with_the_abort() -> None:
    desk = Desk().begin()
    operation = desk.offsets()
    desk.end(commit=False)
    assert operation.is_done
    assert operation.error is not None


def test_an_error_of_the_aborted_transaction_is_ignored_during_the_abort() -> None:
    desk = Desk().begin()
    desk.finish(desk.offsets())
    desk.offsets()
    (request,) = desk.transactions.poll(desk.now).requests
    operation = desk.transactions.end(commit=False)
    desk.plan(OFFSETS, ErrorCode.ILLEGAL_GENERATION)
    desk.answer(request)
    desk.finish(operation)
    assert desk.transactions.state is State.READY
    assert desk.asked[-1] == END


def test_a_refused_abort_is_fatal() -> None:
    desk = Desk().begin()
    desk.write()
    desk.plan(END, ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(TransactionFatal):
        desk.end(commit=False)


def test_a_call_that_timed_out_may_be_repeated() -> None:
    desk = Desk()
    assert desk.transactions.init() is desk.transactions.init()
    desk.run()
    desk.transactions.begin()
    desk.write()
    assert desk.transactions.end(commit=True) is desk.transactions.end(commit=True)


def test_a_prepare_that_timed_out_may_be_repeated() -> None:
    desk = Desk().begin()
    desk.write()
    assert desk.transactions.prepare() is desk.transactions.prepare()


def test_a_group_that_was_added_is_part_of_the_transaction_even_if_its_offsets_fail() -> None:
    """The coordinator knows the transaction since AddOffsetsToTxn: it must be told of the end."""
    desk = Desk(BY_REQUEST).begin()
    desk.plan(OFFSETS, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    operation = desk.offsets()
    desk.run()
    assert isinstance(operation.error, TransactionAbortable)
    desk.end(commit=False)
    assert desk.asked[-1] == END


def test_the_next_epoch_is_taken_even_if_the_producer_id_is_zero() -> None:
    desk = Desk().begin()
    desk.write()
    operation = desk.transactions.end(commit=True)
    (request,) = desk.transactions.poll(desk.now).requests
    request.on_response(EndTxnResponse(error_code=ErrorCode.NONE, producer_id=0, producer_epoch=8), 5, desk.now)
    desk.finish(operation)
    assert desk.ids[-1] == (0, 8)


def test_every_code_has_one_verdict() -> None:
    for code in ErrorCode:
        if code.retriable:
            assert judge(code) in (Verdict.RETRY, Verdict.FIND_AGAIN), code.name
    assert judge_produce(ErrorCode.INVALID_PRODUCER_EPOCH) is Verdict.ABORT
    assert judge_produce(ErrorCode.PRODUCER_FENCED) is Verdict.FATAL
    assert judge_produce(ErrorCode.MESSAGE_TOO_LARGE) is Verdict.ABORT


# --- two-phase commit -------------------------------------------------------------------------------------------

TWO_PHASE = {"transaction.two.phase.commit.enable": True}


def test_two_phase_commit_uses_version_6() -> None:
    desk = Desk(BY_WRITING, **TWO_PHASE).begin()
    version, init = desk.messages[-1]
    assert version == 6
    assert init.enable2_pc
    assert not init.keep_prepared_txn
    desk.write()
    prepared = desk.prepare().transactions.prepared
    assert prepared is not None
    assert (prepared.transactional_id, prepared.producer_id, prepared.producer_epoch) == ("x", 70, 0)
    assert not prepared.is_empty
    desk.end()
    assert desk.asked == [END]


def test_preparing_refuses_new_records_and_waits_for_those_in_flight() -> None:
    desk = Desk().begin()
    desk.write()
    desk.unfinished = True
    waiting, operation = desk.offsets(), desk.transactions.prepare()
    assert desk.transactions.refusal() is not None
    assert desk.transactions.may_send(PLACE)
    desk.run()
    assert waiting.is_done
    assert not operation.is_done
    desk.unfinished = False
    desk.finish(operation)
    assert desk.transactions.state is State.PREPARED


def test_after_a_failure_while_preparing_only_abort_is_allowed() -> None:
    desk = Desk().begin()
    desk.write()
    desk.unfinished = True
    operation = desk.transactions.prepare()
    desk.transactions.batch_failed(KafkaError(ErrorCode.MESSAGE_TOO_LARGE), Verdict.ABORT, was_numbered=True)
    assert isinstance(operation.error, TransactionAbortable)
    desk.unfinished = False
    desk.end(commit=False)
    assert desk.transactions.state is State.READY


def test_a_new_instance_keeps_a_prepared_transaction_and_ends_it_with_its_own_epoch() -> None:
    desk = Desk(BY_WRITING, **TWO_PHASE)
    desk.epoch, desk.ongoing = 4, 4
    desk.finish(desk.transactions.init(keep_prepared=True))
    assert desk.transactions.prepared is not None
    assert desk.transactions.prepared.producer_epoch == 4
    assert desk.transactions.state is State.PREPARED
    desk.end(commit=False)
    assert desk.messages[-1][1].producer_epoch == 5
    assert desk.state() is State.READY
    assert desk.transactions.prepared is None


def test_without_two_phase_commit_version_6_is_not_used() -> None:
    desk = Desk().start()
    assert desk.messages[-1][0] == 5


# --- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"transactional.id": "x", "enable.idempotence": "false"},
            "Cannot set a transactional.id without also enabling idempotence.",
        ),
        ({"transactional.id": "x", "acks": "1"}, "Must set acks to all in order to use the idempotent producer."),
        ({"transactional.id": "x", "retries": "0"}, "Must set retries to non-zero when using the idempotent producer."),
        ({"transactional.id": ""}, "Invalid value  for configuration transactional.id"),
        ({"transactional.id": "x", "transaction.timeout.ms": "0"}, "transaction.timeout.ms"),
        (TWO_PHASE, "without also setting transactional.id"),
        ({"transactional.id": "x", "transaction.timeout.ms": "9", **TWO_PHASE}, "Cannot set transaction.timeout.ms"),
    ],
)
def test_contradicting_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    """Spec: D2, E1."""
    with pytest.raises(ConfigError) as caught:
        build(ProducerConfig, settings, {})
    assert message in str(caught.value)


def test_a_transactional_id_implies_idempotence() -> None:
    """Spec: E1."""
    assert build(ProducerConfig, {"transactional.id": "x"}, {}).enable_idempotence
