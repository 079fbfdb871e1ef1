"""Fixtures for your own tests, there as soon as ottla is installed: a real broker, and a fresh topic for each test.

>>> def test_orders_are_counted(ottla_broker, ottla_topic):
...     with ottla.Producer(bootstrap_servers=ottla_broker.bootstrap) as producer:
...         producer.send(ottla_topic, b"42 apples")

`@pytest.mark.ottla_topic(partitions=3, configs={"cleanup.policy": "compact"})` shapes the topic, and the ini option
`ottla_settings` (one `name=value` a line) the broker. With pytest-xdist each worker has a broker of its own.
"""

import itertools
import os
import re
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    # Nothing of ottla is imported before a test asks for a fixture: every run of pytest loads this module.
    from ottla.broker.embedded import EmbeddedBroker

_numbers = itertools.count(1)
_CREATE_VERSION = 7
"""Of CreateTopics: what this package's broker serves."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("ottla_settings", "settings of the broker behind ottla_broker, as name=value", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ottla_topic(partitions=1, configs={}): how the topic that ottla_topic makes is shaped"
    )


@pytest.fixture(scope="session")
def ottla_broker(pytestconfig: pytest.Config) -> "Iterator[EmbeddedBroker]":
    """A running broker on a free port, one for each worker, gone with its data at the end. Tests share it."""
    from ottla.broker.embedded import Broker

    # Groups need not wait for company: a test has its consumers together or does not want to.
    settings: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
    for line in pytestconfig.getini("ottla_settings"):
        name, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"ottla_settings: {line!r} is not name=value")
        settings[name.strip()] = value.strip()
    # What a topic is made with is imported while the broker comes up in its own process.
    importing = threading.Thread(target=_import_messages)
    importing.start()
    with Broker.embedded(settings=settings) as broker:
        importing.join()
        yield broker


@pytest.fixture
def ottla_topic(request: pytest.FixtureRequest, ottla_broker: "EmbeddedBroker") -> str:
    """The name of a topic that was made for this test and that no other test uses."""
    marker = request.node.get_closest_marker("ottla_topic")
    shape: dict[str, Any] = {"partitions": 1, **(marker.kwargs if marker is not None else {})}
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:100].strip("-")
    name = f"{words}-{os.getpid()}-{next(_numbers)}"
    if not _create(ottla_broker, name, **shape):
        # Admin knows when to try again, and says what was wrong.
        from ottla.client.blocking import Admin

        with Admin(bootstrap_servers=ottla_broker.bootstrap) as admin:
            admin.create_topic(name, **shape)
    return name


def _import_messages() -> None:
    from ottla.protocol import framing  # noqa: F401
    from ottla.protocol.messages import create_topics  # noqa: F401


def _create(
    broker: "EmbeddedBroker",
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> bool:
    """Makes a topic with one request over a plain socket, or says that it could not.

    The broker is this package's own, so there is nothing to agree on first; and a test that uses another client
    need not wait until this one and its event loop are imported.
    """
    import socket

    from ottla.protocol.framing import decode_response, encode_request
    from ottla.protocol.messages.create_topics import CreateTopicsRequest
    from ottla.protocol.primitives import ProtocolError

    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    try:
        with socket.create_connection((broker.host, broker.port), timeout=30) as connection:
            connection.sendall(encode_request(request.api_key, _CREATE_VERSION, 1, "ottla-pytest", request))
            with connection.makefile("rb") as answers:
                size = int.from_bytes(answers.read(4), "big")
                _, response = decode_response(request.api_key, _CREATE_VERSION, answers.read(size))
    except (OSError, ProtocolError):
        return False
    return all(result.error_code == 0 for result in response.topics) and len(response.topics) == 1
