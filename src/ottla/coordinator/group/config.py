"""What the group coordinator needs to know of the broker's settings. Pure."""

from typing import NamedTuple

from ottla.types import INT32_MAX


class GroupConfig(NamedTuple):
    """Each field is the broker setting of the same meaning, with Kafka's default."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = INT32_MAX
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_retention_check_interval_ms: int = 600_000
    record_max_bytes: int = 1_000_000
    """Key and value of a group's record; what does not fit is refused before anything is changed."""
