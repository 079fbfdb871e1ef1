"""The simulated loop, network and disk."""

import asyncio
import errno
from typing import Any

import pytest

from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimHost, SimLoop
from ottla.testing.sim_network import SimNetwork


class Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []
        self.transport: Any = None
        self.paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False


def test_simulated_hours_take_no_real_time() -> None:
    loop = SimLoop()
    loop.run(asyncio.sleep(7200))
    assert loop.time() == 7200
    assert loop.clock() == 1_700_000_000_000 + 7_200_000


def test_a_deadlock_is_an_error() -> None:
    loop = SimLoop()
    with pytest.raises(RuntimeError, match="deadlock"):
        loop.run(asyncio.Event().wait())


def test_a_killed_machine_runs_no_further_step() -> None:
    loop = SimLoop()
    steps: list[int | str] = []

    async def work() -> None:
        try:
            for number in range(100):
                steps.append(number)
                await asyncio.sleep(1)
        finally:
            steps.append("cleaned up")

    async def story() -> None:
        host = SimHost(loop, "broker")
        host.start(work())
        await asyncio.sleep(2.5)
        host.kill()
        await asyncio.sleep(50)

    loop.run(story())
    assert steps == [0, 1, 2]


def test_bytes_arrive_complete_and_in_order() -> None:
    for seed in range(20):
        loop = SimLoop(seed)
        network = SimNetwork(loop)
        server_side = Collector()

        async def story(loop: SimLoop = loop, server_side: Collector = server_side) -> None:
            server = await loop.create_server(lambda: server_side, "127.0.0.1", 0)
            _, client = await loop.create_connection(Collector, *server.sockets[0].getsockname())
            for number in range(200):
                client.transport.write(number.to_bytes(4, "big"))
                if number % 7 == 0:
                    await asyncio.sleep(0.001)
            client.transport.close()
            await asyncio.sleep(5)

        loop.run(story())
        assert server_side.data == b"".join(n.to_bytes(4, "big") for n in range(200))
        assert server_side.lost == [None]
        assert network.connections == []


def test_a_partition_holds_bytes_back_until_it_heals() -> None:
    loop = SimLoop(3)
    network = SimNetwork(loop)
    server_side = Collector()

    async def story() -> None:
        broker, client_host = SimHost(loop, "broker"), SimHost(loop, "client")
        server = await broker.start(loop.create_server(lambda: server_side, "127.0.0.1", 0))
        _, client = await client_host.start(loop.create_connection(Collector, *server.sockets[0].getsockname()))
        network.partition("broker", "client")
        client.transport.write(b"hello")
        await asyncio.sleep(60)
        assert server_side.data == b""
        network.heal()
        await asyncio.sleep(1)
        assert server_side.data == b"hello"

    loop.run(story())


def test_the_other_end_gets_a_reset_when_a_machine_is_killed() -> None:
    loop = SimLoop(4)
    SimNetwork(loop)

    async def story() -> None:
        broker = SimHost(loop, "broker")
        server = await broker.start(loop.create_server(Collector, "127.0.0.1", 9092))
        address = server.sockets[0].getsockname()
        _, client = await loop.create_connection(Collector, *address)
        broker.kill()
        await asyncio.sleep(1)
        assert isinstance(client.lost[0], ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Collector, *address)

    loop.run(story())


def test_a_reader_that_stops_makes_the_writer_pause() -> None:
    loop = SimLoop(5)
    SimNetwork(loop)
    server_side = Collector()

    async def story() -> None:
        server = await loop.create_server(lambda: server_side, "127.0.0.1", 0)
        _, client = await loop.create_connection(Collector, *server.sockets[0].getsockname())
        await asyncio.sleep(0.1)
        server_side.transport.pause_reading()
        client.transport.write(bytes(1_000_000))
        assert client.paused
        server_side.transport.resume_reading()
        await asyncio.sleep(5)
        assert not client.paused
        assert len(server_side.data) == 1_000_000

    loop.run(story())


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[float]:
        loop = SimLoop(seed)
        SimNetwork(loop)
        arrivals: list[float] = []

        class Noting(Collector):
            def data_received(self, data: bytes) -> None:
                arrivals.append(loop.time())

        async def story() -> None:
            server = await loop.create_server(Noting, "127.0.0.1", 0)
            _, client = await loop.create_connection(Collector, *server.sockets[0].getsockname())
            for _ in range(50):
                client.transport.write(b"x" * 100)
                await loop.run_in_executor(None, lambda: None)
            await asyncio.sleep(1)

        loop.run(story())
        return arrivals

    assert run(1) == run(1) != run(2)


def test_power_loss_keeps_synced_data_and_may_leave_a_torn_tail() -> None:
    outcomes = set()
    for seed in range(60):
        platter = SimPlatter(SimLoop(seed))
        disk = platter.disk()
        disk.make_directories("/data")
        handle = disk.open("/data/log", create=True)
        disk.append(handle, [b"safe"])
        disk.sync(handle)
        disk.append(handle, [b"risky"])
        platter.power_loss()
        content = platter.disk().read_file("/data/log")
        assert content.startswith(b"safe")
        assert len(content) <= 9
        outcomes.add(content)
    assert {b"safe", b"saferisky"} <= outcomes
    assert any(b"\0" in content for content in outcomes)


def test_a_full_disk_refuses_writes_and_an_injected_failure_happens_once() -> None:
    platter = SimPlatter(SimLoop())
    platter.capacity_bytes = 10
    disk = platter.disk()
    disk.make_directories("/d")
    handle = disk.open("/d/f", create=True)
    disk.append(handle, [b"12345678"])
    with pytest.raises(OSError, match="No space left on device"):
        disk.append(handle, [b"901"])
    platter.fail_next("append", errno.EIO)
    with pytest.raises(OSError, match="simulated failure of append"):
        disk.append(handle, [b"9"])
    disk.append(handle, [b"9"])
    assert disk.read_file("/d/f") == b"123456789"
