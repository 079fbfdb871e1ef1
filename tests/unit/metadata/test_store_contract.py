"""The contract of metadata stores: the same tests run on every store."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata.sqlite.store import SqliteStore
from ottla.metadata.store import (
    Change,
    Check,
    Conflict,
    Create,
    Delete,
    MetadataStore,
    SessionExpired,
    Set,
)
from ottla.testing.memory_store import MemoryStore, MemoryTree
from ottla.testing.sim_loop import SimLoop
from ottla.testing.sim_network import SimNetwork
from ottla.testing.sim_store import SimStore, SimStoreHub
from tests.support.waiting import eventually_async


class World:
    """Several sessions with one store."""

    def __init__(
        self,
        make: Callable[[], MetadataStore],
        expire: Callable[[Any, Any], Awaitable[None]],
        loop: SimLoop | None = None,
    ) -> None:
        self.loop = loop
        self._make = make
        self._expire = expire
        self._open: list[MetadataStore] = []

    async def open(self) -> MetadataStore:
        store = self._make()
        await store.start()
        self._open.append(store)
        return store

    async def expire(self, store: MetadataStore, seen_by: MetadataStore) -> None:
        await self._expire(store, seen_by)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            try:
                async with asyncio.timeout(60):
                    await story()
            finally:
                for store in self._open:
                    await store.close()

        if self.loop is not None:
            self.loop.run(whole())
        else:
            asyncio.run(whole())


@pytest.fixture(params=["memory", "sqlite", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "memory":
        tree = MemoryTree()

        async def expire_memory(store: MemoryStore, seen_by: MemoryStore) -> None:
            tree.expire(store)

        return World(lambda: MemoryStore(tree), expire_memory)
    if request.param == "simulated":
        loop = SimLoop(1)
        hub = SimStoreHub(SimNetwork(loop))

        async def expire_simulated(store: SimStore, seen_by: SimStore) -> None:
            hub.tree.end_session(store.session_id)

        return World(lambda: hub.session("broker", session_timeout_ms=3_000), expire_simulated, loop)

    async def expire_sqlite(store: SqliteStore, seen_by: SqliteStore) -> None:
        await seen_by.expire(store.session_id)

    return World(lambda: SqliteStore(str(tmp_path / "metadata.sqlite")), expire_sqlite)


def test_a_key_starts_at_version_0_and_each_set_increments_it(world: World) -> None:
    async def story() -> None:
        store = await world.open()
        assert await store.get("/a") is None
        await store.commit([Create("/a", b"one")])
        created = await store.get("/a")
        assert created is not None
        assert (created.value, created.version, created.session_id) == (b"one", 0, 0)
        await store.commit([Set("/a", b"two", version=0)])
        changed = await store.get("/a")
        assert changed is not None
        assert (changed.value, changed.version, changed.created) == (b"two", 1, created.created)
        assert changed.modified > created.modified
        await store.commit([Delete("/a", version=1)])
        assert await store.get("/a") is None

    world.run(story)


def test_operations_with_a_stale_version_are_rejected(world: World) -> None:
    async def story() -> None:
        store = await world.open()
        await store.commit([Create("/a", b"one")])
        await store.commit([Set("/a", b"two")])
        for stale in (Set("/a", b"x", version=0), Delete("/a", version=0), Check("/a", version=0)):
            with pytest.raises(Conflict) as caught:
                await store.commit([stale])
            assert caught.value.operation == stale
        for missing in (Set("/b", b"x"), Delete("/b"), Check("/b")):
            with pytest.raises(Conflict, match="no such key"):
                await store.commit([missing])
        with pytest.raises(Conflict, match="exists"):
            await store.commit([Create("/a", b"x")])
        found = await store.get("/a")
        assert found is not None
        assert (found.value, found.version) == (b"two", 1)

    world.run(story)


def test_a_key_that_was_removed_and_created_again_is_another_key(world: World) -> None:
    """Its version is the same, the revision at which it was created is not."""

    async def story() -> None:
        store = await world.open()
        await store.commit([Create("/a", b"one")])
        first = await store.get("/a")
        assert first is not None
        await store.commit([Check("/a", 0, first.created)])
        await store.commit([Delete("/a")])
        await store.commit([Create("/a", b"two")])
        with pytest.raises(Conflict, match="created at"):
            await store.commit([Check("/a", 0, first.created)])
        await store.commit([Check("/a", 0)])

    world.run(story)


def test_a_session_is_confirmed_until_it_ends(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        assert ann.is_confirmed
        await world.expire(ann, seen_by=bob)
        await eventually_async(lambda: not ann.is_confirmed)
        assert bob.is_confirmed

    world.run(story)


def test_a_commit_of_many_keys_is_atomic(world: World) -> None:
    async def story() -> None:
        store = await world.open()
        await store.commit([Create("/taken", b"")])
        before = await store.scan("/")
        steps: list[list[Change]] = []
        store.watch("/", lambda changes: steps.append(list(changes)))
        with pytest.raises(Conflict):
            await store.commit([Create("/a", b""), Set("/taken", b"x", 0), Create("/taken", b"")])
        assert await store.scan("/") == before
        assert steps == []
        await store.commit([Create("/a", b"1"), Create("/b", b"2"), Check("/taken", 0), Delete("/taken")])
        assert [entry.key for entry in await store.scan("/")] == ["/a", "/b"]
        assert len(steps) == 1, "one commit is delivered in one call"
        assert {change.key: change.entry and change.entry.value for change in steps[0]} == {
            "/a": b"1",
            "/b": b"2",
            "/taken": None,
        }
        first, second = await store.scan("/")
        assert first.modified == second.modified

    world.run(story)


def test_operations_of_one_commit_see_earlier_ones(world: World) -> None:
    async def story() -> None:
        store = await world.open()
        await store.commit([Create("/a", b"1"), Set("/a", b"2", version=0), Check("/a", version=1)])
        await store.commit([Delete("/a"), Create("/a", b"3")])
        found = await store.get("/a")
        assert found is not None
        assert (found.value, found.version) == (b"3", 0)

    world.run(story)


def test_scan_returns_the_entries_under_a_prefix_sorted_by_key(world: World) -> None:
    async def story() -> None:
        store = await world.open()
        await store.commit([Create(key, b"") for key in ("/t/b", "/t/a/1", "/u", "/t/a", "/tt")])
        assert [entry.key for entry in await store.scan("/t/")] == ["/t/a", "/t/a/1", "/t/b"]
        assert [entry.key for entry in await store.scan("/")] == ["/t/a", "/t/a/1", "/t/b", "/tt", "/u"]
        assert await store.scan("/none") == []

    world.run(story)


def test_exactly_one_of_two_concurrent_creations_succeeds(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        outcomes = await asyncio.gather(
            ann.commit([Create("/controller", b"ann", ephemeral=True)]),
            bob.commit([Create("/controller", b"bob", ephemeral=True)]),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [Conflict]
        winner = ann if outcomes[0] is None else bob
        found = await bob.get("/controller")
        assert found is not None
        assert found.session_id == winner.session_id

    world.run(story)


def test_closing_a_session_removes_its_ephemeral_keys_and_notifies_watches(world: World) -> None:
    """Spec: B11."""

    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        await ann.commit([Create("/ids/1", b"ann", ephemeral=True), Create("/stays", b"")])
        heard: list[Change] = []
        bob.watch("/ids", heard.extend)
        await bob.sync()
        assert await bob.get("/ids/1") is not None
        await ann.close()
        await eventually_async(lambda: any(change.entry is None for change in heard))
        assert await bob.get("/ids/1") is None
        assert await bob.get("/stays") is not None

    world.run(story)


def test_an_expired_session_loses_its_ephemeral_keys_and_is_notified(world: World) -> None:
    """Spec: B11."""

    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        expired = asyncio.Event()
        ann.on_expired = expired.set
        await ann.commit([Create("/ids/1", b"ann", ephemeral=True)])
        await bob.sync()
        heard: list[Change] = []
        bob.watch("/ids", heard.extend)
        await world.expire(ann, seen_by=bob)
        await eventually_async(lambda: [change.entry for change in heard] == [None])
        await expired.wait()
        with pytest.raises(SessionExpired):
            await ann.commit([Create("/late", b"")])
        with pytest.raises(SessionExpired):
            await ann.get("/ids/1")
        await ann.start()
        await ann.commit([Create("/ids/1", b"ann again", ephemeral=True)])
        await eventually_async(lambda: heard[-1].entry is not None)

    world.run(story)


def test_an_expired_session_cannot_write(world: World) -> None:
    """A process that was suspended must not act on stale state."""

    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        await ann.commit([Create("/controller", b"ann", ephemeral=True)])
        await world.expire(ann, seen_by=bob)
        await bob.commit([Create("/controller", b"bob", ephemeral=True)])
        with pytest.raises(SessionExpired):
            await ann.commit([Create("/decision", b"of the old controller")])
        assert await bob.get("/decision") is None

    world.run(story)


def test_a_watch_gets_the_changes_under_its_prefix_in_order_until_removed(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        heard: list[tuple[str, bytes | None]] = []

        def note(changes: Any) -> None:
            heard.extend((change.key, change.entry and change.entry.value) for change in changes)

        end = bob.watch("/topics/", note)
        await ann.commit([Create("/topics/a", b"1"), Create("/other", b"")])
        await eventually_async(lambda: heard == [("/topics/a", b"1")])
        await ann.commit([Set("/topics/a", b"2")])
        await eventually_async(lambda: len(heard) == 2)
        await ann.commit([Delete("/topics/a")])
        await eventually_async(lambda: len(heard) == 3)
        assert heard == [("/topics/a", b"1"), ("/topics/a", b"2"), ("/topics/a", None)]
        end()
        await ann.commit([Create("/topics/b", b"")])
        await bob.sync()
        assert len(heard) == 3

    world.run(story)


def test_own_commits_are_delivered_before_commit_returns(world: World) -> None:
    async def story() -> None:
        store = await world.open()
        heard: list[Change] = []
        store.watch("/", heard.extend)
        await store.commit([Create("/a", b"1")])
        assert [(change.key, change.entry and change.entry.version) for change in heard] == [("/a", 0)]

    world.run(story)


def test_sync_delivers_all_commits_of_other_sessions(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        heard: list[str] = []
        bob.watch("/", lambda changes: heard.extend(change.key for change in changes))
        for number in range(20):
            await ann.commit([Create(f"/{number:02}", b"")])
        await bob.sync()
        assert heard == [f"/{number:02}" for number in range(20)]

    world.run(story)


def test_a_recreated_key_is_delivered_with_its_new_value(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        await ann.commit([Create("/a", b"old"), Create("/b", b"old")])
        await bob.sync()
        last: dict[str, bytes | None] = {}

        def note(changes: Any) -> None:
            last.update({change.key: change.entry and change.entry.value for change in changes})

        bob.watch("/", note)
        await ann.commit([Delete("/a"), Delete("/b")])
        await ann.commit([Create("/a", b"new")])
        await bob.sync()
        assert last == {"/a": b"new", "/b": None}

    world.run(story)


def test_concurrent_increments_are_not_lost(world: World) -> None:
    async def story() -> None:
        stores = [await world.open() for _ in range(4)]
        await stores[0].commit([Create("/counter", b"0")])

        async def count(store: MetadataStore) -> None:
            for _ in range(5):
                while True:
                    found = await store.get("/counter")
                    assert found is not None
                    try:
                        await store.commit([Set("/counter", b"%d" % (int(found.value) + 1), found.version)])
                        break
                    except Conflict:
                        continue

        await asyncio.gather(*map(count, stores))
        found = await stores[0].get("/counter")
        assert found is not None
        assert (found.value, found.version) == (b"20", 20)

    world.run(story)


def test_a_commit_of_thousands_of_keys_is_atomic_and_one_step(world: World) -> None:
    """More than one transaction of etcd can hold: others see all of it or nothing, and so does a later session."""

    async def story() -> None:
        ann, bob = await world.open(), await world.open()
        await ann.commit([Create("/taken", b"1"), Create("/old", b"")])
        await bob.sync()
        steps: list[list[Change]] = []
        bob.watch("/", lambda changes: steps.append(list(changes)))
        many = [Create(f"/t/{number:04}", b"x" * 200) for number in range(2_000)]
        with pytest.raises(Conflict) as caught:
            await ann.commit([*many, Set("/taken", b"x", version=7)])
        assert caught.value.operation == Set("/taken", b"x", version=7)
        await bob.sync()
        assert (len(await bob.scan("/t/")), steps) == (0, [])
        await ann.commit([Create("/me", b"", ephemeral=True), *many, Set("/taken", b"2", version=0), Delete("/old")])
        await bob.sync()
        assert [len(step) for step in steps if step] == [2_003], "one step for watchers"
        carol = await world.open()
        for store in (ann, bob, carol):
            assert [entry.key for entry in await store.scan("/t/")] == [each.key for each in many]
            me, taken = await store.get("/me"), await store.get("/taken")
            assert me is not None
            assert taken is not None
            assert (me.session_id, taken.value, taken.version) == (ann.session_id, b"2", 1)
            assert await store.get("/old") is None

    world.run(story)


def test_the_first_keys_of_a_large_commit_get_the_same_revision(world: World) -> None:
    """A broker's registration is stored under two keys, whose revision is its epoch."""

    async def story() -> None:
        store = await world.open()
        many = [Create(f"/t/{number:04}", b"") for number in range(500)]
        await store.commit([Create("/ids/1", b"", ephemeral=True), Create("/known/1", b""), *many])
        first, second = await store.get("/ids/1"), await store.get("/known/1")
        assert first is not None
        assert second is not None
        assert first.created == second.modified

    world.run(story)


def test_large_and_small_commits_of_several_sessions_do_not_lose_each_other(world: World) -> None:
    async def story() -> None:
        ann, bob, carol = [await world.open() for _ in range(3)]
        await ann.commit([Create("/counter", b"0")])

        async def count(store: MetadataStore) -> None:
            for _ in range(5):
                while True:
                    found = await store.get("/counter")
                    assert found is not None
                    try:
                        await store.commit([Set("/counter", b"%d" % (int(found.value) + 1), found.version)])
                        break
                    except Conflict:
                        continue

        await asyncio.gather(
            count(ann),
            count(bob),
            ann.commit([Create(f"/ann/{number}", b"") for number in range(300)]),
            bob.commit([Create(f"/bob/{number}", b"") for number in range(300)]),
            count(carol),
        )
        found = await carol.get("/counter")
        assert found is not None
        assert found.value == b"15"
        assert (len(await carol.scan("/ann/")), len(await carol.scan("/bob/"))) == (300, 300)

    world.run(story)
