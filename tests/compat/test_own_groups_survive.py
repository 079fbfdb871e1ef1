"""R5 with our own client and a broker that is restarted and killed: groups stay together, and chains of them lose and
duplicate nothing while members come and go, with every assignor."""

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from ottla import AsyncAdmin, AsyncConsumer, AsyncProducer, Broker, async_transform
from ottla.clock import monotonic
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S, eventually_async, stretched

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
QUICK = {"session.timeout.ms": stretched(10_000), "heartbeat.interval.ms": 300, "auto.offset.reset": "earliest"}
STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


@pytest.mark.parametrize("ending", ["restarted", "killed"])
def test_a_broker_that_comes_back_finds_its_groups_as_they_were(tmp_path: Path, ending: str) -> None:
    """Spec: R5, B10. The coordinator restarts within the session timeout; no member rejoins, and everything is read."""

    async def story(broker: Any) -> None:
        at = {"bootstrap.servers": broker.bootstrap}
        async with AsyncAdmin(at) as admin:
            await admin.create_topic("t", partitions=6)
        lasting = {**QUICK, "session.timeout.ms": 600_000}
        members = [AsyncConsumer({**at, **lasting}, group_id="g", client_id=f"m{number}") for number in range(3)]
        found: list[int] = []
        stop = asyncio.Event()

        async def read(member: AsyncConsumer) -> None:
            await member.subscribe(["t"])
            while not stop.is_set():
                found.extend(int(record.value or b"") for record in await member.poll(100))

        reading = [asyncio.ensure_future(read(member)) for member in members]
        async with AsyncProducer(at) as producer:
            owned: list[int] = []

            def is_shared() -> bool:
                owned[:] = [len(member._positions.states) for member in members]  # noqa: SLF001 (without awaiting)
                return owned == [2, 2, 2]

            await eventually_async(is_shared)
            before = [await member.group_metadata() for member in members]
            for number in range(60):
                await producer.send("t", f"{number}", partition=number % 6)
            await eventually_async(lambda: len(found) == 60)
            for bounce in range(2):
                if ending == "killed":
                    await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.restart)
                for number in range(60):
                    await producer.send("t", f"{60 * (bounce + 1) + number}", partition=number % 6)
                await eventually_async(lambda total=60 * (bounce + 2): len(set(found)) == total)  # type: ignore[misc]
        after = [await member.group_metadata() for member in members]
        assert before == after, "the same members in the same generation"
        stop.set()
        await asyncio.gather(*reading)
        for member in members:
            await member.close()
        assert sorted(found) == list(range(180)), "every record must be read once"

    with Broker.embedded(data=tmp_path, settings=SETTINGS) as broker:
        asyncio.run(story(broker))


class Link:
    """One group of a chain: copies a topic to the next with a changing number of members, exactly once."""

    def __init__(self, bootstrap: str, source: str, to: str, strategy: str, chance: random.Random) -> None:
        self.bootstrap, self.source, self.to, self.strategy, self.chance = bootstrap, source, to, strategy, chance
        self.members: list[tuple[asyncio.Event, asyncio.Task[Any]]] = []

    def join(self) -> None:
        stop = asyncio.Event()
        settings = {"bootstrap.servers": self.bootstrap, "partition.assignment.strategy": self.strategy, **QUICK}
        settings |= {
            "max.poll.records": 7,
            "transaction.timeout.ms": stretched(15_000),
            "linger.ms": 0,
            "retry.backoff.ms": 50,
        }
        copying = async_transform(
            lambda record: record.value, self.source, self.to, group_id=f"to-{self.to}", settings=settings, stop=stop
        )
        self.members.append((stop, asyncio.ensure_future(copying)))

    async def change(self) -> None:
        """A member joins, leaves, or disappears."""
        for _, task in [member for member in self.members if member[1].done()]:
            task.result()
        kind = self.chance.choice(["join", "leave", "vanish"])
        if kind == "join" or len(self.members) < 2:
            self.join()
            return
        stop, task = self.members.pop(self.chance.randrange(len(self.members)))
        if kind == "leave":
            stop.set()
            await task
        else:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def end(self) -> None:
        for stop, _ in self.members:
            stop.set()
        await asyncio.gather(*(task for _, task in self.members))


def test_chains_of_groups_lose_and_duplicate_nothing_with_every_assignor(tmp_path: Path) -> None:
    """Spec: R5, E9. Four chains at once, one for each assignor; members come and go, and the broker is killed."""
    count, partitions = 300, 3

    async def story(broker: Any) -> None:
        chance = random.Random(5)
        at = {"bootstrap.servers": broker.bootstrap}
        links = []
        async with AsyncAdmin(at) as admin, AsyncProducer(at) as producer:
            for strategy in STRATEGIES:
                names = [f"{strategy}-{step}" for step in range(3)]
                for name in names:
                    await admin.create_topic(name, partitions=partitions)
                links += [Link(broker.bootstrap, *pair, strategy, chance) for pair in itertools.pairwise(names)]
            for link in links:
                link.join()
                link.join()
            for number in range(count):
                for strategy in STRATEGIES:
                    await producer.send(f"{strategy}-0", f"{number}", key=f"{number % 20}")
                if number % 50 == 25:
                    await asyncio.gather(*(link.change() for link in chance.sample(links, 4)))
                if number == count // 2:
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.restart)
                await asyncio.sleep(0.005)
        ends = [f"{strategy}-2" for strategy in STRATEGIES]
        found = {name: await read(broker.bootstrap, name, partitions, count) for name in ends}
        await asyncio.gather(*(link.end() for link in links))
        for name, values in found.items():
            assert sorted(values) == list(range(count)), f"{name}: each once"
            for key in range(20):
                own = [value for value in values if value % 20 == key]
                assert own == sorted(own), f"{name}: the records of a key stay in order"

    with Broker.embedded(data=tmp_path, settings=SETTINGS) as broker:
        asyncio.run(story(broker))


async def read(bootstrap: str, topic: str, partitions: int, count: int) -> list[int]:
    """All committed values, once there are enough, and those of the following second."""
    settings = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    async with AsyncConsumer(settings) as consumer:
        await consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        values: list[int] = []
        deadline = monotonic() + 2 * PATIENCE_S
        while len(values) < count:
            assert monotonic() < deadline, f"{len(values)} of {count} came through to {topic}"
            values += [int(record.value or b"") for record in await consumer.poll(300)]
        values += [int(record.value or b"") for record in await consumer.poll(1_000)]
        return values
