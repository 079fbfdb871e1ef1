"""The broker settings that the group coordinator uses. Pure."""

from dataclasses import dataclass

from ottla.config import BaseConfig, setting
from ottla.log.config import topic_default
from ottla.types import INT32_MAX

BATCH_OVERHEAD_BYTES = 200
"""Room for the header of a batch and of its record."""


@dataclass(init=False, repr=False, eq=False)
class GroupConfig(BaseConfig):
    """How a broker coordinates groups."""

    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        3000,
        "How long the first rebalance of an empty group waits for more members.",
        at_least=0,
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms", 6000, "The shortest session timeout a member may request.", at_least=1
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms", 1_800_000, "The longest session timeout a member may request.", at_least=1
    )
    group_max_size: int = setting("group.max.size", INT32_MAX, "The most members of one classic group.", at_least=1)
    group_metadata_max_bytes: int = setting(
        "ottla.group.metadata.max.bytes",
        16 * 1024 * 1024,
        "The most memory for the members of one classic group; a member that exceeds it gets GROUP_MAX_SIZE_REACHED.",
        at_least=1,
    )
    groups_metadata_max_bytes: int = setting(
        "ottla.groups.metadata.max.bytes",
        128 * 1024 * 1024,
        "The most memory for the members of all classic groups of this broker.",
        kind="long",
        at_least=1,
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", 4096, "The longest metadata that a client may commit with an offset."
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", 10_080, "How long offsets are kept after the group stopped using them.", at_least=1
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        600_000,
        "How often to check for expired offsets.",
        kind="long",
        at_least=1,
    )
    message_max_bytes: int = topic_default("max.message.bytes")

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @property
    def record_max_bytes(self) -> int:
        """The largest key and value of a group's record; a larger one is rejected before anything is changed."""
        return self.message_max_bytes - BATCH_OVERHEAD_BYTES
