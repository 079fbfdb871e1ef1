"""The embedded broker of a pipeline without `bootstrap`; its data is stored next to the checkpoint."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from ottla.broker.embedded.broker import EmbeddedBroker
from ottla.checks import endpoint_from_text
from ottla.client.blocking import Admin
from ottla.errors import OttlaError
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.running.state import StateDirectory

DEFAULT_PORT = 9092
PARTITIONS = 4
SETTINGS = {"transaction.two.phase.commit.enable": "true"}
"""Two-phase commit: prepared transactions never time out, however long the driver is down."""


@contextlib.contextmanager
def embedded_broker(data: Path, wanted: str | None = None) -> Iterator[EmbeddedBroker]:
    """Runs a broker on its previous address, else on the default port, else on a free port."""
    listen = next((address for address in (wanted, f"127.0.0.1:{DEFAULT_PORT}") if address and is_free(address)), None)
    data.mkdir(parents=True, exist_ok=True)
    with EmbeddedBroker(data, settings=SETTINGS, listen=listen or "127.0.0.1:0") as broker:
        yield broker


def last_address(state: StateDirectory) -> str | None:
    run = state.read()
    return run.bootstrap if run is not None and run.embedded_broker else None


def is_free(address: str) -> bool:
    """Whether a broker could listen there."""
    endpoint = endpoint_from_text(address)
    if endpoint is None:
        return False
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    try:
        with contextlib.closing(socket.socket(family)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(endpoint)
    except OSError:
        return False
    return True


def create_missing_topics(made: Pipeline, bootstrap: str) -> list[str]:
    """Creates missing topics of a pipeline on its embedded broker; on other brokers, their operator creates topics."""
    if not made.topics_in and any(source.pattern for source in made.sources.values()):
        raise OttlaError(
            "a topic pattern matches nothing on a new embedded broker", "List the topics by name, or pass --bootstrap."
        )
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        there = {topic.name for topic in admin.list_topics()}
        missing = [topic for topic in (*made.topics_in, *made.topics_out) if topic not in there]
        for topic in missing:
            admin.create_topic(topic, partitions=PARTITIONS)
    return missing
