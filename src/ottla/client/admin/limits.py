"""Adds the broker's limits to an error that only says that a value is out of range."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from ottla.client.admin.configs import describe_configs
from ottla.client.core.network import Network
from ottla.client.core.settings import ConsumerConfig, ProducerConfig
from ottla.errors import ErrorCode, KafkaError

E = TypeVar("E", bound=KafkaError)

LOOKUP_TIMEOUT_S = 2
"""If the broker does not return its limits within this time, the error names only the settings."""

SESSION_LIMITS = ("group.min.session.timeout.ms", "group.max.session.timeout.ms")
GROUP_LIMIT = ("group.max.size",)
TRANSACTION_LIMIT = ("transaction.max.timeout.ms",)


async def with_limits(error: E, network: Network, config: ConsumerConfig | ProducerConfig) -> E:
    """The same error with the limit that was exceeded and the value that exceeds it."""
    if error.code == ErrorCode.INVALID_SESSION_TIMEOUT and isinstance(config, ConsumerConfig):
        least, most = await _settings(network, SESSION_LIMITS)
        detail = f"session.timeout.ms: {config.session_timeout_ms} ms is not between {least} and {most}"
    elif error.code == ErrorCode.GROUP_MAX_SIZE_REACHED and isinstance(config, ConsumerConfig):
        (most,) = await _settings(network, GROUP_LIMIT)
        detail = f"group {config.group_id} has {most} members already (group.max.size)"
    elif error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT and isinstance(config, ProducerConfig):
        (most,) = await _settings(network, TRANSACTION_LIMIT)
        detail = f"transaction.timeout.ms: {config.transaction_timeout_ms} ms is not between 1 and {most}"
    else:
        return error
    return type(error)(error.code, f"{detail} ({error.detail})" if error.detail else detail)


async def _settings(network: Network, names: Sequence[str]) -> list[str]:
    """The values of broker settings, or their names if they cannot be read."""
    node_id = min(network.view.brokers, default=None)
    found: dict[str, str | None] = {}
    if node_id is not None:
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                entries = await describe_configs(network, "broker", str(node_id), names=names)
            found = {entry.name: entry.value for entry in entries}
        except (KafkaError, TimeoutError):
            pass
    return [found.get(name) or f"the broker's {name}" for name in names]
