"""The broker that a pipeline gets when none is named: embedded, with its records beside the checkpoint."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from ottla.broker.embedded import EmbeddedBroker
from ottla.client.blocking import Admin
from ottla.errors import OttlaError
from ottla.pipeline.model import Pipeline
from ottla.pipeline.state import StateDirectory

USUAL_PORT = 9092
PARTITIONS = 4
SETTINGS = {"transaction.two.phase.commit.enable": "true"}
"""So that rows which wait for their batch's decision never time out, however long a driver is away."""


@contextlib.contextmanager
def embedded_broker(data: Path, wanted: str | None = None) -> Iterator[EmbeddedBroker]:
    """Runs a broker on the address it had the last time, or on the usual one, or on a free one."""
    listen = next((address for address in (wanted, f"127.0.0.1:{USUAL_PORT}") if address and is_free(address)), None)
    data.mkdir(parents=True, exist_ok=True)
    with EmbeddedBroker(data, settings=SETTINGS, listen=listen or "127.0.0.1:0") as broker:
        yield broker


def last_address(state: StateDirectory) -> str | None:
    run = state.read()
    return run.bootstrap if run is not None and run.embedded_broker else None


def is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, ValueError):
            return False
    return True


def create_missing_topics(made: Pipeline, bootstrap: str) -> list[str]:
    """Makes the topics that a pipeline names, on a broker of its own: elsewhere topics are for others to decide."""
    if not made.topics_in and any(source.pattern for source in made.sources.values()):
        raise OttlaError(
            "a broker of its own has no topics that a pattern could match", "Name the topics, or give --bootstrap."
        )
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        there = {topic.name for topic in admin.list_topics()}
        missing = [topic for topic in (*made.topics_in, *made.topics_out) if topic not in there]
        for topic in missing:
            admin.create_topic(topic, partitions=PARTITIONS)
    return missing
