"""The resources that ACLs protect and the operations on them, with Kafka's numbers. Pure."""

import enum
from typing import NamedTuple, TypeVar

E = TypeVar("E", bound=enum.IntEnum)


class ResourceType(enum.IntEnum):
    """What an ACL protects. ANY is for filters; UNKNOWN is a number that this version does not know."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(enum.IntEnum):
    """What is done with a resource. ALL stands for every operation; ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(enum.IntEnum):
    """How an ACL names resources: exactly or by prefix. ANY and MATCH are for filters: MATCH finds every ACL that
    applies to a name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class PermissionType(enum.IntEnum):
    """Whether an ACL allows or denies. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def known(kind: type[E], number: int) -> E:
    """The member with this number; UNKNOWN if there is none: a newer peer may have more than this version.

    >>> known(PatternType, 4).name, known(PatternType, 99).name
    ('PREFIXED', 'UNKNOWN')
    """
    try:
        return kind(number)
    except ValueError:
        return kind(0)


class Resource(NamedTuple):
    """One resource by its exact name."""

    type: ResourceType
    name: str


CLUSTER_NAME = "kafka-cluster"
CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)
"""The only resource of its type."""

NOT_REPORTED = -1
"""Instead of an API key, for checks whose denial rejects no request: another permission may suffice, or a list becomes
shorter. Kafka has `logIfDenied` for this."""
