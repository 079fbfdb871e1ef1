"""A broker as a service of systemd: what it says on NOTIFY_SOCKET."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.cli.serve.systemd import notify, watchdog_interval_s
from tests.support.waiting import PATIENCE_S

SOURCE = str(Path(__file__).parents[3] / "src")


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """systemd's side."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0" + address[1:] if address.startswith("@") else address)
        heard.settimeout(PATIENCE_S)
        yield heard


def heard_until(heard: socket.socket, wanted: str) -> list[str]:
    messages = [heard.recv(4096).decode()]
    while not messages[-1].startswith(wanted):
        messages.append(heard.recv(4096).decode())
    return messages


@pytest.mark.parametrize("brokers", [[], ["--brokers", "2"]])
def test_systemd_is_notified_when_a_broker_serves_lives_and_stops(tmp_path: Path, brokers: list[str]) -> None:
    address = str(tmp_path / "notify")
    with listening(address) as heard:
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000", "PYTHONPATH": SOURCE}
        words = ["--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--log-level", "error", *brokers]
        with subprocess.Popen(
            [sys.executable, "-m", "ottla", "serve", *words],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
        ) as process:
            ready = heard_until(heard, "READY=1")[-1]
            assert ready.startswith("READY=1\nSTATUS=serves clients at 127.0.0.1:")
            assert ready.count("127.0.0.1") == max(1, len(brokers))
            assert heard_until(heard, "WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            before_the_stop = heard_until(heard, "STOPPING=1")[:-1]
            assert set(before_the_stop) <= {"WATCHDOG=1"}, "children of --brokers say nothing"
        assert process.returncode == 0


def test_an_abstract_address_works(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"@ottla-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with listening(address) as heard:
        notify("READY=1")
        assert heard.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/no/such/socket", "vsock:2:1234"])
def test_a_broker_does_not_care_that_nobody_listens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


@pytest.mark.parametrize(
    ("microseconds", "process", "seconds"),
    [("30000000", None, 15.0), ("30000000", "1", None), ("0", None, None), ("soon", None, None), (None, None, None)],
)
def test_signs_of_life_are_sent_twice_as_often_as_expected_and_only_by_the_main_process(
    microseconds: str | None, process: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WATCHDOG_USEC", microseconds), ("WATCHDOG_PID", process)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert watchdog_interval_s() == seconds
