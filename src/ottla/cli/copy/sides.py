"""One of the two clusters of a copy, and the clients that talk to it."""

from collections.abc import Mapping
from pathlib import Path

from ottla.cli.client_config import for_kind, read_client_properties
from ottla.cli.session import client_settings
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.settings import AdminConfig, ConsumerConfig, ProducerConfig
from ottla.client.producer.producer import AsyncProducer
from ottla.errors import OttlaError

READING = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "allow.auto.create.topics": "false",
}
"""Required for a correct copy; these override the user's file."""


class Side:
    """A cluster by its addresses, with the settings of a file for all clients."""

    def __init__(self, bootstrap: str, file: Mapping[str, str] | None = None) -> None:
        self._base = client_settings(bootstrap)
        self._file = file or {}

    def admin(self) -> AsyncAdmin:
        return AsyncAdmin(self._base | for_kind(self._file, AdminConfig))

    def consumer(self, defaults: Mapping[str, str] | None = None) -> AsyncConsumer:
        """Reads committed records, from any position. The user's file overrides `defaults`."""
        return AsyncConsumer({**(defaults or {}), **self._base, **for_kind(self._file, ConsumerConfig), **READING})

    def producer(self, transactional_id: str, defaults: Mapping[str, str]) -> AsyncProducer:
        # A producer has no such timeout: it waits for max.block.ms and delivery.timeout.ms.
        base = {name: value for name, value in self._base.items() if name != "default.api.timeout.ms"}
        required = {"acks": "all", "transactional.id": transactional_id}
        return AsyncProducer({**defaults, **base, **for_kind(self._file, ProducerConfig), **required})


def side_from(bootstrap: str, config: str | None, option: str) -> Side:
    """From the options --from and --from-config, or --to and --to-config."""
    if not bootstrap.strip():
        raise OttlaError(f"{option} is empty", f"write {option} HOST:PORT")
    return Side(bootstrap, None if config is None else read_client_properties(Path(config)))
