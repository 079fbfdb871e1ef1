"""What an error means for a transaction: try again, abort and start over, or give the producer up. Pure."""

import enum

from ottla.errors import ErrorCode, KafkaError

E = ErrorCode


class TransactionAbortable(KafkaError):
    """The transaction cannot be committed any more. Abort it; the same producer may begin the next one."""


class TransactionFatal(KafkaError):
    """This producer can do nothing more: another one has taken its place, or the cluster refuses it. Close it."""


class Verdict(enum.Enum):
    """What to do about an error."""

    RETRY = "retry"
    FIND_AGAIN = "find again"
    """The coordinator moved, or cannot be reached: look it up, then retry."""
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
        # What TxnOffsetCommit says to a member that its group has moved on without.
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
    """What a coordinator's error means. What nobody expects there is fatal: nothing is known of the transaction."""
    if code in _FIND_AGAIN:
        return Verdict.FIND_AGAIN
    if code in _ABORT:
        return Verdict.ABORT
    return Verdict.RETRY if code.retriable else Verdict.FATAL


def is_turned_down(code: ErrorCode) -> bool:
    """Whether what was to be added was looked at and refused. A coordinator that is busy, loading or another one by
    now says nothing of that, and nothing of what became of the same request whose answer was lost."""
    return judge(code) is Verdict.ABORT or code == E.UNKNOWN_TOPIC_OR_PARTITION


def judge_produce(code: ErrorCode) -> Verdict:
    """What it means that a batch failed for good. A leader's INVALID_PRODUCER_EPOCH is not the last word: the
    coordinator says at the abort whether this producer was fenced, or its transaction only timed out."""
    return Verdict.FATAL if code in _PRODUCE_FATAL else Verdict.ABORT


def fenced(code: ErrorCode) -> ErrorCode:
    """Older versions of the coordinator's APIs say INVALID_PRODUCER_EPOCH for PRODUCER_FENCED."""
    return E.PRODUCER_FENCED if code == E.INVALID_PRODUCER_EPOCH else code
