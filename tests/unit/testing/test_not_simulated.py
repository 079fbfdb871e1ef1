"""What SimLoop does not simulate is an error that says so, and never a real socket or process."""

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import SimLoop


def loop() -> Any:
    return asyncio.get_running_loop()


async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


CALLS: dict[str, Callable[[], Any]] = {
    "UDP": lambda: loop().create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)),
    "Unix servers": lambda: asyncio.start_unix_server(nothing, "socket"),
    "Unix clients": lambda: asyncio.open_unix_connection("socket"),
    "programs": lambda: asyncio.create_subprocess_exec(sys.executable, "-c", "open('made', 'w')"),
    "shells": lambda: asyncio.create_subprocess_shell("touch made"),
    "pipes to read": lambda: loop().connect_read_pipe(asyncio.Protocol, sys.stdin),
    "pipes to write": lambda: loop().connect_write_pipe(asyncio.Protocol, sys.stdout),
    "accepted sockets": lambda: loop().connect_accepted_socket(asyncio.Protocol, None),
    "readers": lambda: loop().add_reader(0, print),
    "writers": lambda: loop().add_writer(1, print),
    "sock_connect": lambda: loop().sock_connect(None, ("127.0.0.1", 1)),
    "sock_accept": lambda: loop().sock_accept(None),
    "sock_recv": lambda: loop().sock_recv(None, 1),
    "sock_sendall": lambda: loop().sock_sendall(None, b""),
    "names": lambda: loop().getnameinfo(("127.0.0.1", 80)),
    "TLS later": lambda: loop().start_tls(None, None, None),
    "TLS servers": lambda: asyncio.start_server(nothing, "127.0.0.1", 0, ssl=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)),
    "TLS clients": lambda: asyncio.open_connection("127.0.0.1", 7000, ssl=True),
    "sockets of servers": lambda: asyncio.start_server(nothing, sock=object()),
    "sockets of clients": lambda: asyncio.open_connection(sock=object()),
    "local addresses": lambda: asyncio.open_connection("127.0.0.1", 7000, local_addr=("127.0.0.1", 5)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_it_is_an_error_that_says_what_to_do_instead(
    call: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        await asyncio.start_server(nothing, "127.0.0.1", 7000)
        found = call()
        if asyncio.iscoroutine(found):
            await found

    with pytest.raises(NotImplementedError, match=r"SimLoop does not simulate .+\. [A-Z].+\.$"):
        SimLoop(seed=1).run(main())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: asyncio.open_connection("127.0.0.1", 7000, timeout=5),
        lambda: asyncio.start_server(nothing, "127.0.0.1", 7001, threads=2),
    ],
)
def test_an_unknown_argument_is_an_error_as_on_a_real_loop(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    async def main() -> None:
        await asyncio.start_server(nothing, "127.0.0.1", 7000)
        await call()

    with pytest.raises(TypeError, match="unexpected keyword argument"):
        SimLoop(seed=1).run(main())


def test_arguments_without_an_effect_in_simulation_are_accepted() -> None:
    async def main() -> bytes:
        server = await asyncio.start_server(
            nothing,
            "127.0.0.1",
            7000,
            limit=1024,
            family=socket.AF_INET,
            backlog=5,
            ssl=None,
            reuse_address=True,
            reuse_port=False,
            start_serving=True,
        )
        async with server:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", 7000, limit=1024, family=socket.AF_INET, happy_eyeballs_delay=0.2, ssl=None, sock=None
            )
            writer.close()
            return await reader.read()

    assert SimLoop(seed=1).run(main()) == b""


def test_addresses_are_resolved_to_themselves() -> None:
    async def main() -> Any:
        return await loop().getaddrinfo("broker", 9092, type=socket.SOCK_STREAM)

    assert SimLoop(seed=1).run(main())[0][4] == ("broker", 9092)
