"""The endpoint for operators bounds what a hostile peer can take: connections, bytes, time, and the event loop."""

import asyncio

from ottla.broker.monitoring import http_endpoint
from ottla.broker.monitoring.http_endpoint import MAX_CONNECTIONS, HttpEndpoint, Page
from ottla.testing import SimLoop, SimNetwork

ADDRESS = "127.0.0.1:9308"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect() -> Streams:
    host, _, port = ADDRESS.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ask(request: bytes) -> bytes:
    reader, writer = await connect()
    writer.write(request)
    return await reader.read()


def test_further_connections_are_closed_and_silent_ones_make_room() -> None:
    async def story() -> None:
        endpoint = HttpEndpoint()
        endpoint.pages[b"/page"] = lambda: Page(b"hello")
        await endpoint.listen(ADDRESS)
        silent = [await connect() for _ in range(MAX_CONNECTIONS)]
        try:
            refused = await ask(b"GET /page HTTP/1.1\r\n\r\n")
        except ConnectionError:
            refused = b""
        assert refused == b""
        await asyncio.sleep(http_endpoint.MAX_SECONDS + 1)
        assert endpoint.connections == 0
        assert (await ask(b"GET /page HTTP/1.1\r\n\r\n")).endswith(b"hello")
        for _, writer in silent:
            writer.close()
        endpoint.close()

    loop = SimLoop(1)
    SimNetwork(loop)
    loop.run(story())


def test_a_page_that_takes_long_is_not_computed_for_everyone_who_asks() -> None:
    async def story() -> None:
        endpoint, computed = HttpEndpoint(), 0
        loop = asyncio.get_running_loop()
        now = loop.time()

        def slow() -> Page:
            nonlocal computed, now
            computed += 1
            now += 0.2
            return Page(b"page %d" % computed)

        endpoint.pages[b"/slow"] = slow
        loop.time = lambda: now  # type: ignore[method-assign]
        assert endpoint.page(b"/slow").body == b"page 1"
        assert endpoint.page(b"/slow").body == b"page 1"
        now += 1.9
        assert endpoint.page(b"/slow").body == b"page 1"
        now += 0.2
        assert endpoint.page(b"/slow").body == b"page 2"

    asyncio.run(story())
