"""OWNER of the HTTP endpoint for operators (`ottla.metrics.listen`): a few pages over minimal HTTP.

It runs on the broker's event loop and answers from the start, before the logs are loaded.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.settings.listeners import parse_metrics_listen

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("ottla.broker")

MAX_REQUEST_BYTES = 16 * 1024
MAX_CONNECTIONS = 64
"""Further ones are closed at once: a scraper and some probes need a few."""
MAX_SECONDS = 30
"""How long a connection may take, from its first byte to the end of the answer."""
MAX_LOAD = 0.1
"""The most of the event loop's time that a page may take, however often it is requested."""


class Page(NamedTuple):
    """An answer of the endpoint."""

    body: bytes
    content_type: str = "text/plain"
    status: bytes = b"200 OK"


class HttpEndpoint:
    """Answers GET requests with the page that is registered for their path."""

    def __init__(self) -> None:
        self.pages: dict[bytes, Callable[[], Page]] = {}
        """What computes a page, by path. It runs on the event loop and must be quick."""
        self.port = 0
        """Where it listens."""
        self.connections = 0
        self._computed: dict[bytes, tuple[Page, float]] = {}
        """A cache of slow pages, with the time at which each expires."""
        self._listener: asyncio.AbstractServer | None = None

    async def listen(self, address: str) -> None:
        """Listens on HOST:PORT. Raises OSError."""
        host, port = parse_metrics_listen(address)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Http(self), host or None, port)
        self.port = self._listener.sockets[0].getsockname()[1]
        log.info("metrics at http://%s:%d/metrics", host or "localhost", self.port)

    def page(self, path: bytes) -> Page:
        """The page at a known path. One that takes long to compute is computed again only after a while: frequent
        reloads must not slow down the broker's clients."""
        clock = asyncio.get_running_loop().time
        page, until = self._computed.get(path, (None, 0.0))
        begun = clock()
        if page is None or begun >= until:
            page = self.pages[path]()
            ended = clock()
            self._computed[path] = page, ended + (ended - begun) / MAX_LOAD
        return page

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class _Http(asyncio.Protocol):
    """Just enough HTTP for a scraper: one GET, one answer, then the connection is closed."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        self._received = b""
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._endpoint.connections += 1
        if self._endpoint.connections > MAX_CONNECTIONS:
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(MAX_SECONDS, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._endpoint.connections -= 1
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._received += data
        if b"\r\n\r\n" in self._received:
            method, _, rest = self._received.partition(b" ")
            path = rest.partition(b" ")[0].partition(b"?")[0]
            self._answer(method, path)
        elif len(self._received) > MAX_REQUEST_BYTES:
            self._send(Page(b"", status=b"431 Request Header Fields Too Large"))

    def _answer(self, method: bytes, path: bytes) -> None:
        pages = self._endpoint.pages
        path = b"/metrics" if path == b"/" else path
        if method not in (b"GET", b"HEAD"):
            self._send(Page(b"GET only\n", status=b"405 Method Not Allowed"))
        elif path not in pages:
            known = b", ".join(sorted(pages))
            self._send(Page(b"not found; the pages are: " + known + b"\n", status=b"404 Not Found"))
        else:
            try:
                page = self._endpoint.page(path)
            except Exception:
                log.exception("page %s: cannot be computed", path.decode(errors="replace"))
                page = Page(b"internal error; see the broker's log\n", status=b"500 Internal Server Error")
            self._send(page, with_body=method == b"GET")

    def _send(self, page: Page, *, with_body: bool = True) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        body = page.body if with_body else b""
        self._transport.write(head % (page.status, page.content_type.encode(), len(body)) + body)
        self._transport.close()
