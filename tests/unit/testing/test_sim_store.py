"""The simulated metadata store: sessions that time out, and commits whose outcome stays unknown."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.metadata.store import Conflict, Create, Entry, SessionExpired, Set, StoreUnavailable
from ottla.testing.sim_loop import SimHost, SimLoop
from ottla.testing.sim_network import SimNetwork
from ottla.testing.sim_store import SimStore, SimStoreHub

TIMEOUT_MS = 3_000


def run(story: Callable[[SimStoreHub], Awaitable[Any]], seed: int = 1, **options: Any) -> Any:
    loop = SimLoop(seed)

    async def whole() -> Any:
        return await story(SimStoreHub(SimNetwork(loop), **options))

    return loop.run(whole())


async def opened(hub: SimStoreHub, name: str) -> SimStore:
    store = hub.session(name, session_timeout_ms=TIMEOUT_MS)
    await store.start()
    return store


def value_of(hub: SimStoreHub, key: str) -> bytes | None:
    found: Entry | None = hub.tree.entries.get(key)
    return None if found is None else found.value


def test_a_session_that_cannot_reach_the_store_expires_and_learns_it_later() -> None:
    async def story(hub: SimStoreHub) -> None:
        store, other = await opened(hub, "a"), await opened(hub, "b")
        await store.commit([Create("/here", b"", ephemeral=True)])
        expired: list[float] = []
        store.on_expired = lambda: expired.append(hub.loop.time())
        hub.network.partition("a", hub.name)
        await asyncio.sleep(TIMEOUT_MS / 1000 + 1)
        assert await other.get("/here") is None
        assert store.session_id, "it cannot know yet"
        with pytest.raises(StoreUnavailable):
            await store.get("/here")
        hub.network.heal()
        await asyncio.sleep(TIMEOUT_MS / 1000)
        assert len(expired) == 1
        with pytest.raises(SessionExpired):
            await store.commit([Create("/more", b"")])
        await store.start()
        await store.commit([Create("/here", b"", ephemeral=True)])

    run(story)


def test_a_session_lasts_as_long_as_its_machine_runs() -> None:
    async def story(hub: SimStoreHub) -> None:
        host = SimHost(hub.loop, "a")
        store = await host.start(opened(hub, "a"))
        await host.start(store.commit([Create("/here", b"", ephemeral=True)]))
        await asyncio.sleep(60)
        assert value_of(hub, "/here") == b""
        host.pause()
        await asyncio.sleep(TIMEOUT_MS / 1000 + 0.1)
        assert value_of(hub, "/here") is None

    run(story)


def test_a_killed_process_is_noticed_at_once_or_after_its_timeout() -> None:
    async def story(hub: SimStoreHub) -> float:
        host = SimHost(hub.loop, "a")
        store = await host.start(opened(hub, "a"))
        await host.start(store.commit([Create("/here", b"", ephemeral=True)]))
        began = hub.loop.time()
        host.kill()
        hub.died(store)
        while value_of(hub, "/here") is not None:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.001)
        return hub.loop.time() - began

    assert run(story, notices_death=True) < 0.1
    assert 2 < run(story, notices_death=False) < 4


def test_a_commit_that_is_cut_off_may_have_happened_may_not_and_may_still_happen() -> None:
    outcomes = set()

    async def story(hub: SimStoreHub) -> str:
        store = await opened(hub, "a")
        commit = asyncio.ensure_future(store.commit([Create("/a", b"")]))
        await asyncio.sleep(hub.loop.random.uniform(0, 0.008))
        hub.network.partition("a", hub.name)
        try:
            await commit
        except StoreUnavailable:
            pass
        else:
            return "answered"
        if value_of(hub, "/a") is not None:
            return "happened"
        hub.network.heal()
        await asyncio.sleep(5)
        return "late" if value_of(hub, "/a") is not None else "lost"

    for seed in range(60):
        outcomes.add(run(story, seed))
    assert outcomes == {"answered", "happened", "late", "lost"}


def test_notices_come_in_order_and_an_answer_never_overtakes_them() -> None:
    async def story(hub: SimStoreHub) -> None:
        writer, reader = await opened(hub, "a"), await opened(hub, "b")
        versions: list[int] = []
        reader.watch("/a", lambda changes: versions.extend(c.entry.version for c in changes if c.entry))
        await writer.commit([Create("/a", b"")])
        for number in range(20):
            await writer.commit([Set("/a", b"%d" % number)])
            if number % 4 == 0:
                found = await reader.get("/a")
                assert found is not None
                assert versions[-1] == found.version
        await reader.sync()
        hub.network.partition("b", hub.name)
        await writer.commit([Set("/a", b"unseen")])
        await asyncio.sleep(1)
        assert versions[-1] == 20
        hub.network.heal()
        await asyncio.sleep(1)
        assert versions == list(range(22))

    run(story)


def test_of_two_brokers_that_set_the_same_version_one_gets_a_conflict() -> None:
    async def story(hub: SimStoreHub) -> None:
        one, other = await opened(hub, "a"), await opened(hub, "b")
        await one.commit([Create("/a", b"")])
        outcomes = await asyncio.gather(
            one.commit([Set("/a", b"1", version=0)]), other.commit([Set("/a", b"2", version=0)]), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [Conflict]

    run(story)


def test_a_session_is_unconfirmed_before_the_store_ends_it() -> None:
    """By the clock of its own machine."""

    async def story(hub: SimStoreHub) -> None:
        host = SimHost(hub.loop, "a")
        store = await host.start(opened(hub, "a"))
        await host.start(store.commit([Create("/here", b"", ephemeral=True)]))
        await asyncio.sleep(60)
        assert store.is_confirmed
        hub.network.partition("a", hub.name)
        while store.is_confirmed:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.01)
        assert value_of(hub, "/here") == b"", "the store ended it before its owner could know"

    run(story, delay_ms=(50, 60))
