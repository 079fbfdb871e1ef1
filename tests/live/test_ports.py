"""tests/support/ports.py: ports for servers that start later."""

import socket
from collections import deque

import pytest

from tests.support import ports
from tests.support.ports import PORTS, fixed_port, fixed_ports, ports_in_a_row


@pytest.fixture
def few_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """This worker has 40 ports: a second draw of the same one is likely."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", str(len(PORTS) // 40))
    monkeypatch.setattr(ports, "_given", deque(maxlen=256))


@pytest.mark.usefixtures("few_ports")
def test_a_port_is_given_once_although_nothing_listens_on_it_yet() -> None:
    given = [fixed_port() for _ in range(20)] + fixed_ports(4)
    assert len(set(given)) == len(given)


@pytest.mark.usefixtures("few_ports")
def test_a_port_in_use_is_not_given() -> None:
    with socket.create_server(("127.0.0.1", fixed_port())) as server:
        assert server.getsockname()[1] not in [fixed_port() for _ in range(8)]


def test_two_workers_have_no_port_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    first = fixed_ports(50)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    assert max(first) < min(fixed_ports(50))


def test_ports_in_a_row_are_all_free() -> None:
    first = ports_in_a_row(3)
    servers = [socket.create_server(("127.0.0.1", first + n)) for n in range(3)]
    for server in servers:
        server.close()
