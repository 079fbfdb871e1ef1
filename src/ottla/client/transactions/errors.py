"""What an error means for a transaction: retry, abort it or close the producer. Pure."""

import enum

from ottla.errors import ErrorCode, KafkaError

E = ErrorCode


class TransactionAbortable(KafkaError):
    """The transaction cannot be committed any more. Abort it; the producer can then begin the next one."""


class TransactionFatal(KafkaError):
    """The producer is unusable: another one has fenced it, or the cluster rejects it. Close it."""


class Verdict(enum.Enum):
    """How to handle an error."""

    RETRY = "retry"
    FIND_AGAIN = "find again"
    """The coordinator has moved or cannot be reached: look it up again, then retry."""
    ABORT = "abort"
    FATAL = "fatal"


_FIND_AGAIN = frozenset({E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.NETWORK_EXCEPTION, E.REQUEST_TIMED_OUT})
_ABORT = frozenset(
    {
        E.TRANSACTION_ABORTABLE,
        E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        E.UNKNOWN_PRODUCER_ID,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.GROUP_AUTHORIZATION_FAILED,
        E.OPERATION_NOT_ATTEMPTED,
        E.MESSAGE_TOO_LARGE,
        # TxnOffsetCommit of a member that is no longer in the group's current generation (KIP-447).
        E.ILLEGAL_GENERATION,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
        E.STALE_MEMBER_EPOCH,
        E.GROUP_ID_NOT_FOUND,
        E.OFFSET_METADATA_TOO_LARGE,
        E.INVALID_COMMIT_OFFSET_SIZE,
        E.REBALANCE_IN_PROGRESS,
    }
)
_PRODUCE_FATAL = frozenset(
    {
        E.PRODUCER_FENCED,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E.CLUSTER_AUTHORIZATION_FAILED,
        E.INVALID_PRODUCER_ID_MAPPING,
        E.UNSUPPORTED_VERSION,
    }
)


def judge(code: ErrorCode) -> Verdict:
    """How to handle a coordinator's error. An unexpected one is fatal: the state of the transaction is unknown."""
    if code in _FIND_AGAIN:
        return Verdict.FIND_AGAIN
    if code in _ABORT:
        return Verdict.ABORT
    return Verdict.RETRY if code.retriable else Verdict.FATAL


def is_rejected(code: ErrorCode) -> bool:
    """Whether the coordinator has certainly not added what was requested. False for a retriable error: an earlier
    attempt whose response was lost may have added it."""
    return judge(code) is Verdict.ABORT or code == E.UNKNOWN_TOPIC_OR_PARTITION


def judge_produce(code: ErrorCode) -> Verdict:
    """How to handle a failed batch. INVALID_PRODUCER_EPOCH from a partition leader is not fatal: the producer may be
    fenced, or its transaction may have timed out. The coordinator's response to an abort shows which (KIP-588)."""
    return Verdict.FATAL if code in _PRODUCE_FATAL else Verdict.ABORT


def fenced(code: ErrorCode) -> ErrorCode:
    """Older versions of the coordinator's APIs return INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED (KIP-588)."""
    return E.PRODUCER_FENCED if code == E.INVALID_PRODUCER_EPOCH else code
