"""Kafka's error codes, the exception that carries one, and the exceptions for user errors. Pure."""

import enum
from collections.abc import Iterable
from typing import Any, Self


class ErrorCode(enum.IntEnum):
    """A Kafka error code. `code.retriable` says whether the same request may succeed later.

    >>> ErrorCode.NOT_COORDINATOR.retriable, ErrorCode(90).name
    (True, 'PRODUCER_FENCED')
    """

    retriable: bool

    def __new__(cls, code: int, retriable: bool = False) -> Self:
        self = int.__new__(cls, code)
        self._value_ = code
        self.retriable = retriable
        return self

    @classmethod
    def _missing_(cls, value: object) -> "ErrorCode | None":
        """An unknown code, from a newer broker, becomes UNKNOWN_SERVER_ERROR, as in Kafka's own clients."""
        return cls.UNKNOWN_SERVER_ERROR if isinstance(value, int) else None

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, True
    UNKNOWN_TOPIC_OR_PARTITION = 3, True
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5, True
    NOT_LEADER_OR_FOLLOWER = 6, True
    REQUEST_TIMED_OUT = 7, True
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9, True
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13, True
    COORDINATOR_LOAD_IN_PROGRESS = 14, True
    COORDINATOR_NOT_AVAILABLE = 15, True
    NOT_COORDINATOR = 16, True
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19, True
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41, True
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51, True
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, True
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70, True
    INVALID_FETCH_SESSION_EPOCH = 71, True
    LISTENER_NOT_FOUND = 72, True
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74, True
    UNKNOWN_LEADER_EPOCH = 75, True
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78, True
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True
    ELECTION_NOT_NEEDED = 84, True
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88, True
    THROTTLING_QUOTA_EXCEEDED = 89, True
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100, True
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103, True
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122, True
    INVALID_SHARE_SESSION_EPOCH = 123, True
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133, True
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136


HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the name with `ottla topic list`.",
    ErrorCode.LEADER_NOT_AVAILABLE: "The broker that leads the partition is down or starting. Try again.",
    ErrorCode.REQUEST_TIMED_OUT: "Check that the broker is running and not overloaded.",
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller records, or raise the topic's max.message.bytes.",
    ErrorCode.NETWORK_EXCEPTION: "Check that the broker is running and that this machine can reach it.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is down or starting. Try again.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for permission to use the topic, or grant it with `ottla acl add`.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for permission to use the group, or grant it with `ottla acl add`.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for permission on the cluster, or grant it with `ottla acl add`.",
    ErrorCode.UNSUPPORTED_VERSION: "This broker does not support the request. Use a newer broker.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name, or change the topic with `ottla topic alter`.",
    ErrorCode.INVALID_REPLICATION_FACTOR: "There cannot be more replicas than brokers; see `ottla cluster`.",
    ErrorCode.INVALID_CONFIG: "`ottla config describe topic NAME --all` lists the settings.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "Ask for permission to use the transactional id, or grant it with `ottla acl add`."
    ),
    ErrorCode.SECURITY_DISABLED: "Turn ACLs on with the broker setting authorizer.class.name.",
    ErrorCode.NON_EMPTY_GROUP: "Stop the members of the group first.",
    ErrorCode.PRODUCER_FENCED: "Another producer uses the same transactional id. Run only one at a time.",
}
"""What a user can do about an error. Codes that are not here have no general advice."""


class OttlaError(Exception):
    """Base class of all errors of this package: what is wrong, and how to fix it. `str(error)` includes both.

    Raised directly for a mistake that the user can fix. The CLI shows it without a traceback.
    """

    message: str
    """What is wrong, without the hint."""
    hint: str
    """What the user can do about it, or an empty string."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return with_hint(self.message, self.hint)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class KafkaError(OttlaError):
    """A Kafka error code and a description of what went wrong.

    The broker raises it, and `broker/dispatch.py` turns it into a response. The client turns the error code of a
    response back into this exception.
    """

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(f"{code.name}: {detail}" if detail else code.name, HINTS.get(code, ""))
        self.code = code
        self.detail = detail

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable


class AuthenticationError(KafkaError):
    """Broker and client do not agree on TLS, or on who the client is. Retrying would fail the same way.

    Kafka has no error code for TLS failures, so the code is NETWORK_EXCEPTION; but the text does not mention it, and
    the error is not retriable.
    """

    def __init__(self, detail: str, hint: str, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED) -> None:
        super().__init__(code, detail)
        self.hint = hint
        if code == ErrorCode.NETWORK_EXCEPTION:
            self.message = detail

    @property
    def retriable(self) -> bool:
        return False


def error_for(error_code: int, doing: str, message: str | None = None) -> KafkaError:
    """The exception for an error code of a response: what was being done, and the broker's message if it sent one."""
    return KafkaError(ErrorCode(error_code), f"{doing}: {message}" if message else doing)


def raise_for(error_code: int, doing: str, message: str | None = None) -> None:
    """Raises KafkaError unless the error code of a response is NONE."""
    if error_code != ErrorCode.NONE:
        raise error_for(error_code, doing, message)


class ConfigError(OttlaError):
    """A setting that is unknown, malformed or contradicts another."""


class ArgumentError(OttlaError, TypeError, ValueError):
    """An argument of the wrong type or outside its range. Programs may also catch it as TypeError or ValueError."""


class DeliveryTimeoutError(OttlaError, TimeoutError):
    """`result(timeout)` timed out. The record is still in flight; `result()` may be called again."""


def with_hint(message: str, hint: str) -> str:
    """A message with its hint. A hint that is part of the message already is not repeated.

    >>> with_hint("there is no topic ordes", "Did you mean orders?")
    'there is no topic ordes. Did you mean orders?'
    """
    if not hint or hint in message:
        return message
    return f"{message} {hint}" if message.endswith((".", "?", "!", ":")) else f"{message}. {hint}"


def error_text(error: BaseException) -> str:
    """What an error says; the name of its type if it says nothing.

    >>> error_text(OSError("disk full")), error_text(TimeoutError())
    ('disk full', 'TimeoutError')
    """
    return str(error) or type(error).__name__


def error_text_with_type(error: BaseException) -> str:
    """For errors of code that is not ours, which often say little without their type.

    >>> error_text_with_type(KeyError("price"))
    "KeyError: 'price'"
    """
    return f"{type(error).__name__}: {error}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most similar to a misspelled one, or an empty string.

    >>> nearest("retention.sm", ["retention.ms", "segment.ms"]), nearest("orders", ["retention.ms"])
    ('retention.ms', '')
    """
    import difflib  # only needed for errors

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The hint for an unknown name: the most similar known one, or else `otherwise`.

    >>> did_you_mean("ordes", ["orders", "prices"])
    'Did you mean orders?'
    """
    similar = nearest(name, known)
    return f"Did you mean {similar}?" if similar else otherwise


def _rebuild(cls: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """Unpickles an error without calling its constructor, whose arguments differ between classes."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error
