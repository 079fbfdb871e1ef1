"""SimLoop, SimNetwork and SimDisk work for any asyncio code: the listings of docs/testing-your-code.md, and streams."""

import asyncio
import re
from pathlib import Path

import pytest

import ottla.testing
from ottla.testing import SimHost, SimLoop, SimNetwork

PAGE = Path(__file__).parents[3] / "docs" / "testing-your-code.md"
LISTINGS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(LISTINGS)))
def test_the_listings_of_the_page_run(number: int) -> None:
    exec(compile(LISTINGS[number], f"{PAGE.name}, listing {number}", "exec"), {"__name__": "listing"})


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(ottla.testing, name) for name in ottla.testing.__all__)
    assert set(ottla.testing.__all__) <= set(dir(ottla.testing))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = ottla.testing.Nothing


def test_every_public_name_is_documented() -> None:
    page = PAGE.read_text()
    assert [name for name in ottla.testing.__all__ if not re.search(rf"\b{name}\b", page)] == []


async def start_echo_server(port: int = 0) -> asyncio.Server:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_server(echo, "127.0.0.1", port)


def test_streams_can_be_closed_in_one_direction() -> None:
    async def main() -> bytes:
        async with await start_echo_server() as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.writelines([b"to the ", b"end"])
            writer.write_eof()
            return await reader.read()

    assert [SimLoop(seed).run(main()) for seed in range(20)] == [b"to the end"] * 20


def test_a_timeout_takes_no_real_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(86_400)

    async def main() -> float:
        server = await asyncio.start_server(silent, "127.0.0.1", 7000)
        assert server.is_serving()
        reader, writer = await asyncio.open_connection("127.0.0.1", 7000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 3600)
        writer.close()
        return asyncio.get_running_loop().time()

    assert 3600 <= SimLoop(seed=1).run(main()) < 3601


def test_a_reset_connection_fails_the_reader() -> None:
    loop = SimLoop(seed=1)
    network = SimNetwork(loop)

    async def main() -> None:
        await SimHost(loop, "server").start(start_echo_server(7000))
        reader, _writer = await asyncio.open_connection("127.0.0.1", 7000)
        network.cut("server")
        with pytest.raises(ConnectionResetError):
            await reader.read()

    loop.run(main())


def test_the_loop_works_with_asyncio_runner() -> None:
    async def main() -> str:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(asyncio.sleep(100, "slow"))
            fast = group.create_task(asyncio.sleep(1, "fast"))
        return f"{fast.result()}, {slow.result()}"

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        assert runner.run(main()) == "fast, slow"
