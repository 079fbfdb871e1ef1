"""The proxies of a local cluster separate exactly the brokers they should; clocks can be shifted."""

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.child_process import child_environment
from ottla.clock import SHIFT_FILE_VARIABLE, shifted_clock
from ottla.verify.cluster.links import CLIENTS, Links
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that returns what it gets, on this port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    def answer(peer: socket.socket) -> None:
        with peer, contextlib.suppress(ConnectionError):  # the link is cut, and the connection reset
            while piece := peer.recv(4096):
                peer.sendall(piece)

    threading.Thread(target=serve, daemon=True).start()
    yield int(server.getsockname()[1])
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.fixture
def links() -> Iterator[Links]:
    opened = Links()
    yield opened
    opened.close()


class Caller:
    """A connection that begins with a request header of this client."""

    def __init__(self, port: int, client_id: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        name = client_id.encode()
        self.head = struct.pack(">ihhih", 10 + len(name), 18, 0, 1, len(name)) + name
        self.socket.sendall(self.head)

    def hears(self, expected: bytes, timeout_s: float = PATIENCE_S) -> bool:
        self.socket.settimeout(timeout_s)
        found = b""
        try:
            while len(found) < len(expected):
                piece = self.socket.recv(4096)
                if not piece:
                    return False
                found += piece
        except TimeoutError:
            return False
        return found == expected

    def says(self, data: bytes) -> None:
        self.socket.sendall(data)


def test_a_cut_holds_back_bytes_and_loses_none(links: Links, echo: int) -> None:
    port = links.open("broker-0", echo)
    caller = Caller(port, "a client")
    assert caller.hears(caller.head)
    links.cut(("broker-0", CLIENTS))
    caller.says(b"hello")
    assert not caller.hears(b"hello", timeout_s=0.3)
    links.heal(("broker-0", CLIENTS))
    assert caller.hears(b"hello")
    caller.socket.close()


def test_only_the_named_parties_are_separated(links: Links, echo: int) -> None:
    port = links.open("broker-0", echo)
    links.cut(("broker-0", "broker-1"))
    cut, other, client = (Caller(port, name) for name in ("broker-1", "broker-2", "ottla-cli"))
    assert other.hears(other.head)
    assert client.hears(client.head)
    assert not cut.hears(cut.head, timeout_s=0.3)
    links.heal(("broker-0", "broker-1"))
    assert cut.hears(cut.head)
    for each in (cut, other, client):
        each.socket.close()


def test_a_connection_that_was_closed_during_a_cut_delivers_nothing_later(links: Links, echo: int) -> None:
    port = links.open("broker-0", echo)
    gone = Caller(port, "a client")
    assert gone.hears(gone.head)
    links.cut(("broker-0", CLIENTS))
    gone.says(b"late")
    gone.socket.close()
    links.heal(("broker-0", CLIENTS))
    caller = Caller(port, "a client")
    assert caller.hears(caller.head)
    caller.socket.close()


def test_a_source_can_be_named_when_the_protocol_is_another_one(links: Links, echo: int) -> None:
    port = links.open("store", echo, source="broker-1")
    caller = Caller(port, "anything")
    assert caller.hears(caller.head)
    links.cut(("store", "broker-1"))
    caller.says(b"x")
    assert not caller.hears(b"x", timeout_s=0.3)
    caller.socket.close()


def test_a_shifted_clock_follows_its_file(tmp_path: Path) -> None:
    file = tmp_path / "shift"
    file.write_bytes(bytes(8))
    clock = shifted_clock(file)
    assert abs(clock() - time.time() * 1000) < 60_000
    with open(file, "r+b") as opened:
        opened.write((-3_600_000).to_bytes(8, "little", signed=True))
    assert abs(clock() + 3_600_000 - time.time() * 1000) < 60_000


def test_a_process_reads_its_wall_time_through_the_file_that_its_environment_names(tmp_path: Path) -> None:
    file = tmp_path / "shift"
    file.write_bytes((7_200_000).to_bytes(8, "little", signed=True))
    program = "from ottla.clock import system_clock; print(system_clock())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**child_environment(), SHIFT_FILE_VARIABLE: os.fspath(file)},
    )
    assert abs(int(done.stdout) - 7_200_000 - time.time() * 1000) < 60_000
