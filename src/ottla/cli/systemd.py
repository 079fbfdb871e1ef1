"""OWNER of the socket to systemd, for units with Type=notify: ready, stopping, and the signs of life for WatchdogSec.

Does nothing unless systemd (or a container runtime) set NOTIFY_SOCKET.
"""

import os
import socket
from typing import TYPE_CHECKING

from ottla.checks import number_from_text

if TYPE_CHECKING:
    import asyncio


def notify(message: str) -> None:
    """Sends one message, as sd_notify(3) describes: READY=1, STOPPING=1, STATUS=…"""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # in the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto(message.encode(), address)
    except OSError:  # nobody listens: a broker serves its clients anyway
        pass


def watchdog_interval_s() -> float | None:
    """How often systemd expects a sign of life from this process, divided by two as it recommends; None: never."""
    microseconds = number_from_text(os.environ.get("WATCHDOG_USEC", ""))
    process = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if microseconds is None or microseconds <= 0 or process != str(os.getpid()):
        return None
    return microseconds / 1e6 / 2


def keep_alive(loop: "asyncio.AbstractEventLoop") -> None:
    """Sends signs of life from the event loop: if it hangs, systemd starts the broker again."""
    interval = watchdog_interval_s()
    if interval is None:
        return

    def beat(interval: float = interval) -> None:
        notify("WATCHDOG=1")
        loop.call_later(interval, beat)

    beat()
