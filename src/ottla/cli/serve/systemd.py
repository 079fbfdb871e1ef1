"""OWNER of the socket to systemd, for units with Type=notify: ready, stopping, and the keep-alives for WatchdogSec.

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
    except OSError:  # no listener: the broker serves its clients anyway
        pass


def watchdog_interval_s() -> float | None:
    """Half of the interval in which systemd expects a keep-alive, as it recommends; None without a watchdog."""
    microseconds = number_from_text(os.environ.get("WATCHDOG_USEC", ""))
    process = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if microseconds is None or microseconds <= 0 or process != str(os.getpid()):
        return None
    return microseconds / 1e6 / 2


def keep_alive(loop: "asyncio.AbstractEventLoop") -> None:
    """Sends keep-alives from the event loop: if it hangs, systemd restarts the broker."""
    interval = watchdog_interval_s()
    if interval is None:
        return

    def beat(interval: float = interval) -> None:
        notify("WATCHDOG=1")
        loop.call_later(interval, beat)

    beat()
