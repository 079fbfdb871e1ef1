"""Values that have a special meaning in requests, responses and stored records, for brokers and clients. Pure."""

import enum

from ottla.types import INT32_MAX

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels of Fetch and ListOffsets."""

LATEST = -1
"""In place of a timestamp: the offset after the last readable record."""
EARLIEST = -2
"""In place of a timestamp: the first available offset."""
MAX_TIMESTAMP = -3
"""In place of a timestamp: the record with the largest timestamp."""

NO_GENERATION = -1
"""The generation of a group's member that has not joined, or of a commit from outside the group."""

TRANSACTION_V2 = 2
"""The transaction.version from which a write adds its partition, and each transaction has its own epoch (KIP-890)."""
IMPLICIT_ADD_SINCE_PRODUCE = 12
"""The version of Produce from which a write adds its partition to the transaction (KIP-890)."""
IMPLICIT_ADD_SINCE_OFFSET_COMMIT = 5
"""The version of TxnOffsetCommit from which it adds the group to the transaction (KIP-890)."""
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 32_767
NO_TIMEOUT_MS = INT32_MAX
"""The timeout of two-phase commit transactions, which an external coordinator ends (KIP-939)."""


CONSUMER = "consumer"
"""The protocol type of groups of consumers, whose subscriptions and assignments can be decoded."""


class ConfigResourceType(enum.IntEnum):
    """What a config belongs to. ACLs number their resources differently: ottla.security.resources."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(enum.IntEnum):
    """What IncrementalAlterConfigs does with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigSource(enum.IntEnum):
    """Where the value of a setting comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


CONFIG_TYPES = ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")
"""The type of a setting, by the number on the wire."""


class UpgradeType(enum.IntEnum):
    """What UpdateFeatures may do with a feature's level (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3
