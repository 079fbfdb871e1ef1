"""A paused machine: its callbacks wait while time goes on for all others."""

import asyncio

from ottla.testing.sim_loop import SimHost, SimLoop
from ottla.testing.sim_network import SimNetwork


def test_nothing_runs_on_a_paused_machine_and_everything_runs_after_it() -> None:
    seen: list[tuple[float, int]] = []

    async def count(loop: SimLoop) -> None:
        for number in range(6):
            seen.append((loop.time(), number))
            await asyncio.sleep(1)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        host = SimHost(loop, "h")
        host.start(count(loop))
        await asyncio.sleep(1.5)
        host.pause()
        await asyncio.sleep(10)
        assert len(seen) == 2
        host.resume()
        await asyncio.sleep(5)

    SimLoop(1).run(story())
    assert [number for _, number in seen] == list(range(6))
    assert [round(time, 3) for time, _ in seen] == [0, 1, 11.5, 12.5, 13.5, 14.5]


def test_a_timer_that_is_cancelled_after_the_pause_does_not_fire() -> None:
    """Both were due in the pause. The first one cancels the second, as it could without the pause."""
    fired: list[str] = []

    async def set_timers() -> None:
        loop = asyncio.get_running_loop()
        second = loop.call_later(2, fired.append, "second")

        def first() -> None:
            fired.append("first")
            second.cancel()

        loop.call_later(1, first)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        host = SimHost(loop, "h")
        await host.start(set_timers())
        host.pause()
        await asyncio.sleep(5)
        host.resume()
        await asyncio.sleep(1)

    SimLoop(1).run(story())
    assert fired == ["first"]


def test_a_paused_server_accepts_connections_and_answers_later() -> None:
    async def serve() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readline()).upper())
            writer.close()

        await asyncio.start_server(answer, "10.0.0.1", 7000)

    async def story() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        SimNetwork(loop)
        host = SimHost(loop, "server")
        await host.start(serve())
        host.pause()
        reader, writer = await asyncio.open_connection("10.0.0.1", 7000)
        writer.write(b"hello\n")
        loop.call_later(20, host.resume)
        assert await reader.readline() == b"HELLO\n"
        writer.close()
        return loop.time()

    assert 20 < SimLoop(1).run(story()) < 21


def test_a_paused_machine_can_be_killed() -> None:
    seen: list[int] = []

    async def count() -> None:
        while True:
            seen.append(len(seen))
            await asyncio.sleep(1)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        host = SimHost(loop, "h")
        host.start(count())
        await asyncio.sleep(0.5)
        host.pause()
        await asyncio.sleep(2)
        host.kill()
        host.resume()
        await asyncio.sleep(5)

    SimLoop(1).run(story())
    assert seen == [0]
