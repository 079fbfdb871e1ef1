"""Closes clients that the program did not: those it dropped, and those still open at exit. OWNER of the exit handler.

If the event loop still runs, a producer sends its buffered records and a consumer leaves its group. A log message says
so, because the missing close() is probably a mistake.
"""
# ruff: noqa: SLF001 - the methods of the clients for this module are not part of their API

import asyncio
import atexit
import concurrent.futures
import logging
import os
import warnings
import weakref
from collections.abc import Coroutine
from typing import Any, Protocol

from ottla.client.core.network import Network

log = logging.getLogger("ottla.client")

EXIT_TIMEOUT_S = 10.0
"""How long the exit of a program may wait for its clients, all together."""


class Client(Protocol):
    """What this module needs of a producer or a consumer."""

    def _unclosed_name(self) -> str:
        """For messages, as in "producer ottla"."""

    def _unclosed_work(self) -> str:
        """What would be lost, as in "3 batches of records are not stored"; empty if nothing would be."""

    def _close_late(self) -> Coroutine[Any, Any, None]:
        """Sends what is buffered, or leaves the group; in limited time."""

    def _open_network(self) -> Network | None:
        """The client's network if it was used and is not closed, in the process that made it."""


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def register(client: Client) -> None:
    """Closes the client at exit, if it still exists and is open."""
    _open.add(client)


def dropped(client: Client) -> None:
    """For `__del__`: closes a client that is no longer referenced."""
    try:
        network = client._open_network()
    except AttributeError:  # its constructor failed
        return
    if network is None:
        return
    name, work = client._unclosed_name(), client._unclosed_work()
    if network.close_later(client._close_late):
        log.warning("%s was dropped without close(); it is closed now%s", name, f": {work}" if work else "")
        warnings.warn(f"{name} was not closed. Use `with`, or call close()", ResourceWarning, stacklevel=2)
    elif work:
        log.error("%s was dropped without close(), and its event loop has ended: %s", name, work)


def _close_all() -> None:
    """At exit: closes what is still open on event loops that run, and reports what is lost on others."""
    closing: list[tuple[str, str, concurrent.futures.Future[None]]] = []
    for client in list(_open):
        network = client._open_network()
        if network is None:
            continue
        name, work = client._unclosed_name(), client._unclosed_work()
        loop = network.running_loop()
        if loop is not None:
            closing.append((name, work, asyncio.run_coroutine_threadsafe(client._close_late(), loop)))
        elif work:
            log.error("%s was not closed, and its event loop has ended: %s. Use `async with`", name, work)
    _, late = concurrent.futures.wait([future for _, _, future in closing], timeout=EXIT_TIMEOUT_S)
    for name, work, future in closing:
        if future in late or future.exception() is not None:
            why = "it took too long" if future in late else future.exception()
            log.error("%s was not closed, and closing it at exit failed: %s%s", name, why, f"; {work}" if work else "")
        elif work:
            log.error("%s was not closed: %s, and were flushed at exit. Use `with`, or call close()", name, work)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_open.clear)  # they belong to the parent
