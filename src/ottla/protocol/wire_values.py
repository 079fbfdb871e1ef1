"""Values that have a special meaning in requests, responses and stored records, for brokers and clients. Pure."""

from ottla.types import INT32_MAX

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels of Fetch and ListOffsets."""

LATEST = -1
"""In place of a timestamp: the offset after the last readable record."""
EARLIEST = -2
"""In place of a timestamp: the first available offset."""
MAX_TIMESTAMP = -3
"""In place of a timestamp: the record with the largest timestamp."""

PRODUCER_EPOCH_MAX = 32_767
NO_TIMEOUT_MS = INT32_MAX
"""The timeout of two-phase commit transactions, which an external coordinator ends (KIP-939)."""

CONFIG_TYPES = ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")
"""The type of a setting, by the number on the wire."""
