"""What only the store in etcd has to survive: lost answers, broken watches, compaction, expiry, crashes in between."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.errors import OttlaError
from ottla.metadata.etcd import session_writes
from ottla.metadata.etcd.client import EtcdClient, EtcdUnavailable
from ottla.metadata.etcd.large_commits import LargeCommits
from ottla.metadata.etcd.location import parse_location
from ottla.metadata.etcd.store import EtcdStore
from ottla.metadata.store import Change, Check, Conflict, Create, Delete, SessionExpired, Set, StoreUnavailable
from tests.support.processes.etcd import EtcdCluster
from tests.support.waiting import eventually_async, run_story, slowness, stretched

_numbers = itertools.count()


@pytest.fixture
def prefix() -> str:
    return f"/store-{next(_numbers)}"


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(parse_location(url), **{"session_timeout_ms": stretched(3_000), **options})
    await store.start()
    try:
        yield store
    finally:
        await store.close()


class LostAnswers:
    """Loses the answers of transactions: `before` they are executed, or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: list[str] = []
        self.delayed: list[Awaitable[Any]] = []
        original = EtcdClient.call

        async def call(client: EtcdClient, path: str, body: Any, **options: Any) -> Any:
            if path != "kv/txn" or not self.plan:
                return await original(client, path, body, **options)
            fault = self.plan.pop(0)
            if fault == "executed":
                await original(client, path, body, **options)
            elif fault == "late":
                self.delayed.append(original(client, path, body, **options))
            raise EtcdUnavailable("the answer is lost", was_sent=True)

        monkeypatch.setattr(EtcdClient, "call", call)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    return LostAnswers(monkeypatch)


def test_a_commit_whose_answer_is_lost_is_executed_once(etcd: EtcdCluster, prefix: str, lost: LostAnswers) -> None:
    async def story() -> None:
        async with opened(etcd.url(prefix)) as store:
            await store.commit([Create("/a", b"0")])
            for number, faults in enumerate((["executed"], ["never"], ["never", "never"], ["executed"]), 1):
                lost.plan = faults
                await store.commit([Set("/a", b"%d" % number)])
                found = await store.get("/a")
                assert found is not None
                assert (found.value, found.version) == (b"%d" % number, number)

    run_story(story)


def test_a_commit_that_arrives_late_is_not_executed_twice(etcd: EtcdCluster, prefix: str, lost: LostAnswers) -> None:
    """It was taken for lost and repeated: the late one must find its condition broken."""

    async def story() -> None:
        async with opened(etcd.url(prefix)) as store:
            await store.commit([Create("/a", b"0")])
            lost.plan = ["late"]
            await store.commit([Set("/a", b"1")])
            for late in lost.delayed:
                assert not (await late).get("succeeded")
            found = await store.get("/a")
            assert found is not None
            assert (found.value, found.version) == (b"1", 1)
            await store.commit([Set("/a", b"2", version=1)])

    run_story(story)


def test_a_conflict_of_a_repeated_commit_is_its_own_doing_only_once(
    etcd: EtcdCluster, prefix: str, lost: LostAnswers
) -> None:
    """Create succeeds although its first answer was lost: it must not report that the key exists."""

    async def story() -> None:
        async with opened(etcd.url(prefix)) as store:
            lost.plan = ["executed"]
            await store.commit([Create("/a", b"")])
            with pytest.raises(Conflict):
                await store.commit([Create("/a", b"")])

    run_story(story)


def test_an_unknown_outcome_is_reported_when_etcd_stays_away(
    etcd: EtcdCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with etcd.proxied() as way:
            async with opened(way.url(prefix), session_timeout_ms=300_000) as store:
                await store.commit([Create("/a", b"0")])
                way.cut()
                with monkeypatch.context() as patch:
                    patch.setattr(session_writes, "GIVE_UP_S", 0.5)
                    patch.setattr(session_writes, "ANSWER_TIMEOUT_S", 0.3)
                    with pytest.raises(StoreUnavailable):
                        await store.commit([Set("/a", b"1")])
                way.restore()
                # What was sent may have arrived: it is settled before the next commit, never in between.
                await store.commit([Set("/a", b"2")])
                await store.sync()
                found = await store.get("/a")
                assert found is not None
                assert found.value == b"2"
                assert found.version in (1, 2)

    run_story(story)


def test_a_watch_that_goes_silent_is_continued_without_a_gap(etcd: EtcdCluster, prefix: str) -> None:
    async def story() -> None:
        with etcd.proxied() as way:
            async with (
                opened(way.url(prefix)) as ann,
                opened(etcd.url(prefix)) as bob,
            ):
                heard: list[str] = []
                ann.watch("/", lambda changes: heard.extend(change.key for change in changes))
                await bob.commit([Create("/0", b"")])
                await eventually_async(lambda: heard == ["/0"])
                way.cut()
                for number in range(1, 5):
                    await bob.commit([Create(f"/{number}", b"")])
                way.reset()  # bytes that waited are lost
                way.restore()
                await eventually_async(lambda: heard == [f"/{number}" for number in range(5)])
                assert ann.session_id
                await ann.sync()

    run_story(story)


def test_after_a_compaction_watchers_get_the_difference_as_one_step(etcd: EtcdCluster, prefix: str) -> None:
    async def story() -> None:
        with etcd.proxied() as way:
            async with opened(way.url(prefix), session_timeout_ms=300_000) as ann, opened(etcd.url(prefix)) as bob:
                await bob.commit([Create("/same", b""), Create("/changed", b"1"), Create("/removed", b"")])
                await ann.sync()
                steps: list[dict[str, bytes | None]] = []
                ann.watch("/", lambda changes: steps.append({key: entry and entry.value for key, entry, _ in changes}))
                way.cut()
                await bob.commit([Set("/changed", b"2"), Delete("/removed"), Create("/passing", b"")])
                await bob.commit([Set("/changed", b"3"), Create("/new", b""), Delete("/passing")])
                revision = etcd.members[0].ask("kv/range", {"key": "AA=="})["header"]["revision"]
                etcd.members[0].ask("kv/compaction", {"revision": revision, "physical": True})
                way.reset()
                way.restore()
                await eventually_async(lambda: bool(steps))
                assert steps == [{"/changed": b"3", "/removed": None, "/new": b""}]
                await bob.commit([Set("/same", b"x")])
                await eventually_async(lambda: len(steps) == 2)
                assert [entry.key for entry in await ann.scan("/")] == ["/changed", "/new", "/same"]

    run_story(story)


def test_a_session_is_not_confirmed_when_etcd_is_out_of_reach_for_its_timeout(etcd: EtcdCluster, prefix: str) -> None:
    """The broker's own clock decides, before etcd can give its place to another."""

    async def story() -> None:
        with etcd.proxied() as way:
            async with (
                opened(way.url(prefix), session_timeout_ms=stretched(1_000)) as ann,
                opened(etcd.url(prefix)) as bob,
            ):
                expired = asyncio.Event()
                ann.on_expired = expired.set
                await ann.commit([Create("/ids/1", b"", ephemeral=True)])
                await bob.sync()
                was_confirmed: list[bool] = []
                bob.watch("/ids", lambda _: was_confirmed.append(ann.is_confirmed))
                assert ann.is_confirmed
                way.cut()
                await eventually_async(lambda: bool(was_confirmed))
                assert was_confirmed == [False], "it knew before the others"
                assert not expired.is_set(), "etcd has not reported it yet"
                way.restore()
                await expired.wait()
                with pytest.raises(SessionExpired):
                    await ann.commit([Create("/late", b"")])
                await ann.start()
                await ann.commit([Create("/ids/1", b"again", ephemeral=True)])

    run_story(story)


def test_a_session_survives_an_absence_of_etcd_that_is_shorter_than_its_lease(etcd: EtcdCluster, prefix: str) -> None:
    async def story() -> None:
        with etcd.proxied() as way:
            async with opened(way.url(prefix), session_timeout_ms=stretched(6_000)) as store:
                await store.commit([Create("/ids/1", b"", ephemeral=True)])
                session_id = store.session_id
                way.reset()
                way.cut()
                await asyncio.sleep(1.0)
                way.restore()
                await store.commit([Create("/a", b"")])
                assert store.session_id == session_id
                assert store.is_confirmed
                assert await store.get("/ids/1") is not None

    run_story(story)


POINTS = ["_write_journal", "_commit_point", "roll_forward"]


@pytest.mark.parametrize("point", POINTS)
def test_a_large_commit_whose_process_dies_is_whole_or_absent(
    etcd: EtcdCluster, prefix: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the commit point nothing has happened; after it, another session completes it."""
    original = getattr(LargeCommits, point)

    async def story() -> None:
        ann = EtcdStore(parse_location(etcd.url(prefix)), session_timeout_ms=stretched(1_000))
        await ann.start()
        async with opened(etcd.url(prefix)) as bob:
            await ann.commit([Create("/before", b"")])
            heard: list[Change] = []
            bob.watch("/t/", heard.extend)
            reached = asyncio.Event()

            async def die(self: LargeCommits, *arguments: Any) -> Any:
                if self is not ann._large:  # noqa: SLF001 - the process that dies
                    return await original(self, *arguments)
                if point == "roll_forward":
                    # One step is applied, then the process is gone.
                    execute, applied = self._writes.execute, 0

                    async def once(*args: Any) -> Any:
                        nonlocal applied
                        applied += 1
                        if applied > 1:
                            reached.set()
                            await asyncio.Event().wait()
                        return await execute(*args)

                    monkeypatch.setattr(self._writes, "execute", once)
                    return await original(self, *arguments)
                reached.set()
                return await asyncio.Event().wait()

            monkeypatch.setattr(LargeCommits, point, die)
            many = [Create(f"/t/{number}", b"") for number in range(400)]
            dying = asyncio.ensure_future(ann.commit([Create("/me", b"", ephemeral=True), *many]))
            await reached.wait()
            for task in [*ann._tasks, *ann._commits, ann._watching]:  # noqa: SLF001
                assert task is not None
                task.cancel()
            dying.cancel()
            ann._client.close()  # noqa: SLF001
            # Others are held up by its lock at most until its session ends.
            await bob.commit([Create("/after", b"")])
            expected = 400 if point == "roll_forward" else 0
            assert len(await bob.scan("/t/")) == len(heard) == expected
            async with opened(etcd.url(prefix)) as carol:
                assert len(await carol.scan("/t/")) == expected
                await carol.commit([Create(f"/u/{number}", b"") for number in range(400)])
                await bob.sync()
                assert len(await bob.scan("/u/")) == 400

    run_story(story)


def test_a_session_that_starts_in_the_middle_of_a_large_commit_completes_it(
    etcd: EtcdCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        ann = EtcdStore(parse_location(etcd.url(prefix)), session_timeout_ms=stretched(1_000))
        await ann.start()

        async def die(*_: Any) -> int:
            raise SessionExpired()

        with monkeypatch.context() as patch:
            patch.setattr(LargeCommits, "roll_forward", die)
            with pytest.raises(SessionExpired):
                await ann.commit([Create(f"/t/{number}", b"") for number in range(400)])
        async with opened(etcd.url(prefix)) as bob:
            assert len(await bob.scan("/t/")) == 400
        await ann.close()

    run_story(story)


def test_many_entries_are_read_in_pages_at_one_revision(
    etcd: EtcdCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.metadata.etcd.store.PAGE_ENTRIES", 7)

    async def story() -> None:
        async with opened(etcd.url(prefix)) as ann:
            await ann.commit([Create(f"/t/{number:03}", b"") for number in range(100)])
            original = EtcdClient.call
            pages = 0

            async def call(client: EtcdClient, path: str, body: Any, **options: Any) -> Any:
                nonlocal pages
                if path == "kv/range" and "limit" in body:
                    pages += 1
                    if pages == 3:
                        await ann.commit([Delete("/t/000"), Delete("/t/099"), Create("/t/new", b"")])
                return await original(client, path, body, **options)

            monkeypatch.setattr(EtcdClient, "call", call)
            async with opened(etcd.url(prefix)) as bob:
                await bob.sync()
                assert await bob.scan("/") == await ann.scan("/")
            assert pages > 10

    run_story(story)


def test_keys_of_another_cluster_are_not_seen(etcd: EtcdCluster, prefix: str) -> None:
    async def story() -> None:
        async with opened(etcd.url(prefix)) as ann, opened(etcd.url(prefix + "-2")) as bob:
            heard: list[Change] = []
            bob.watch("/", heard.extend)
            await ann.commit([Create("/a", b"")])
            await bob.commit([Create("/b", b"")])
            assert [entry.key for entry in await bob.scan("/")] == ["/b"]
            assert [change.key for change in heard] == ["/b"]

    run_story(story)


def test_a_value_beyond_the_limit_of_etcd_is_refused_with_its_size(etcd: EtcdCluster, prefix: str) -> None:
    async def story() -> None:
        async with opened(etcd.url(prefix)) as store:
            with pytest.raises(StoreUnavailable, match=r"/a has 2000002 bytes \(limit in etcd: 1048576\)"):
                await store.commit([Create("/a", b"x" * 2_000_000)])
            await store.commit([Create("/a", b"x" * 1_000_000)])

    run_story(story)


def test_an_unreachable_etcd_is_reported_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.metadata.etcd.store.FIRST_START_S", 0.2)

    async def story() -> None:
        with pytest.raises(OttlaError, match=r"cannot use etcd at etcd://127.0.0.1:1/x: .*refused|Connect call failed"):
            await EtcdStore(parse_location("etcd://127.0.0.1:1/x")).start()

    run_story(story)


def test_the_leader_of_etcd_is_killed_and_commits_go_on(etcd_of_three: EtcdCluster) -> None:
    async def story() -> None:
        async with opened(etcd_of_three.url()) as ann, opened(etcd_of_three.url()) as bob:
            await ann.commit([Create("/counter", b"0"), Create("/ids/1", b"", ephemeral=True)])
            heard: list[int] = []
            bob.watch("/counter", lambda changes: heard.extend(entry.version for _, entry, _ in changes if entry))
            session_id = ann.session_id
            for number in range(1, 31):
                if number == 10:
                    etcd_of_three.leader().kill()
                await ann.commit([Set("/counter", b"%d" % number, version=number - 1)])
            await bob.sync()
            assert heard[-1] == 30
            assert heard == sorted(set(heard)), "in order, none twice"
            assert ann.session_id == session_id
            for member in etcd_of_three.members:
                if member.process is None:
                    member.start()

    run_story(story)


def test_a_session_is_renewed_while_it_reads_everything(
    etcd: EtcdCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 partitions take longer to read than the lease of the broker that starts."""
    read_all = EtcdStore._read_all  # noqa: SLF001

    async def slowly(store: EtcdStore) -> Any:
        await asyncio.sleep(2.5 * store.session_timeout_ms / 1000)
        return await read_all(store)

    monkeypatch.setattr(EtcdStore, "_read_all", slowly)

    async def story() -> None:
        async with opened(etcd.url(prefix), session_timeout_ms=stretched(1_000)) as store:
            assert store.is_confirmed
            await store.commit([Create("/a", b"", ephemeral=True)])

    run_story(story)


def test_a_large_commit_that_another_session_completes_succeeds(
    etcd: EtcdCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clusters in the same etcd change its revision: what counts is the last commit of this one."""

    async def story() -> None:
        async with opened(etcd.url(prefix)) as ann, opened(etcd.url(prefix)) as bob:
            original = ann._large.roll_forward  # noqa: SLF001

            async def overtaken(*arguments: Any) -> int:
                await bob._large.roll_forward()  # noqa: SLF001
                etcd.members[0].ask("kv/put", {"key": "AA==", "value": ""})
                return await original(*arguments)

            monkeypatch.setattr(ann._large, "roll_forward", overtaken)  # noqa: SLF001
            async with asyncio.timeout(5 * slowness()):
                await ann.commit([Create(f"/t/{number}", b"") for number in range(400)])
            assert len(await bob.scan("/t/")) == 400

    run_story(story)


@pytest.fixture
def held_journal(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Large commits wait before they write their journal: the events (they wait, they may continue)."""
    arrived, go_on = asyncio.Event(), asyncio.Event()
    original = LargeCommits._write_journal  # noqa: SLF001

    async def write(self: LargeCommits, *arguments: Any) -> None:
        arrived.set()
        await go_on.wait()
        await original(self, *arguments)

    monkeypatch.setattr(LargeCommits, "_write_journal", write)
    return arrived, go_on


def test_others_do_not_commit_while_a_large_commit_is_prepared(
    etcd: EtcdCluster, prefix: str, held_journal: tuple[asyncio.Event, asyncio.Event]
) -> None:
    """Its conditions must stay true until it is applied."""
    arrived, go_on = held_journal

    async def story() -> None:
        async with opened(etcd.url(prefix)) as ann, opened(etcd.url(prefix)) as bob:
            await ann.commit([Create("/a", b"0")])
            many = [Create(f"/t/{number}", b"") for number in range(400)]
            large = asyncio.ensure_future(ann.commit([Check("/a", 0), *many]))
            await arrived.wait()
            small = asyncio.ensure_future(bob.commit([Set("/a", b"1")]))
            await asyncio.sleep(0.3)
            assert not small.done()
            go_on.set()
            await large
            await small
            await ann.sync()
            a, last = await ann.get("/a"), await ann.get("/t/399")
            assert a is not None
            assert last is not None
            assert a.modified > last.modified

    run_story(story)


def test_a_large_commit_fails_if_a_session_ends_on_which_it_depends(
    etcd: EtcdCluster, prefix: str, held_journal: tuple[asyncio.Event, asyncio.Event]
) -> None:
    """Leases end even while keys are locked: a controller that was replaced must not decide anything."""
    arrived, go_on = held_journal

    async def story() -> None:
        async with opened(etcd.url(prefix)) as ann, opened(etcd.url(prefix)) as bob:
            await bob.commit([Create("/controller", b"bob", ephemeral=True)])
            await ann.sync()
            many = [Create(f"/t/{number}", b"") for number in range(400)]
            large = asyncio.ensure_future(ann.commit([*many, Check("/controller", 0)]))
            await arrived.wait()
            await bob.close()
            go_on.set()
            with pytest.raises(Conflict, match="no such key"):
                await large
            assert await ann.scan("/t/") == []
            await ann.commit([Create("/after", b"")])

    run_story(story)


def test_a_renewal_counts_from_the_time_at_which_it_was_sent(
    etcd: EtcdCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd may have received it at once, and counts from then: a slow answer must not make the lease longer."""
    original = EtcdClient.call
    timeout_ms = stretched(1_000)
    sent: list[float] = []
    answered = asyncio.Event()

    async def call(client: EtcdClient, path: str, body: Any, **options: Any) -> Any:
        if path != "lease/keepalive":
            return await original(client, path, body, **options)
        if sent:
            raise EtcdUnavailable("cut off", was_sent=True)
        sent.append(asyncio.get_running_loop().time())
        answer = await original(client, path, body, **options)
        await asyncio.sleep(0.6 * timeout_ms / 1000)
        asyncio.get_running_loop().call_soon(answered.set)
        return answer

    monkeypatch.setattr(EtcdClient, "call", call)

    async def story() -> None:
        async with opened(etcd.url(prefix), session_timeout_ms=timeout_ms) as store:
            await answered.wait()
            timeout_s = store.session_timeout_ms / 1000
            await asyncio.sleep(max(0.0, sent[0] + timeout_s + 0.05 - asyncio.get_running_loop().time()))
            assert not store.is_confirmed

    run_story(story)


def test_an_etcd_restored_from_a_backup_is_refused_until_a_restart(etcd_program: str) -> None:
    """Its last commits are gone: a broker that went on would mix both histories, and delete topics that the backup does
    not know."""

    async def story(etcd: EtcdCluster) -> None:
        member, url = etcd.members[0], etcd.url("/restored")
        # The lease is so long that the session itself is in the backup, and would survive.
        async with opened(url) as store, opened(url, session_timeout_ms=600_000) as old:
            expired = asyncio.Event()
            store.on_expired = expired.set
            await old.commit([Create("/kept", b"")])
            await asyncio.to_thread(member.stop)
            shutil.copytree(member.home, etcd.home / "backup")
            await asyncio.to_thread(member.start)
            await old.commit([Create("/lost", b"")])
            await store.sync()
            await asyncio.to_thread(member.kill)
            shutil.rmtree(member.home)
            shutil.copytree(etcd.home / "backup", member.home)
            await asyncio.to_thread(member.start)
            await expired.wait()
            for each in (old, store):
                with pytest.raises((SessionExpired, StoreUnavailable)):
                    await each.commit([Create("/new", b"")])
                with pytest.raises(OttlaError, match=r"lost commits.*restored from a backup\?.*start them again"):
                    await each.start()
                assert not each.is_confirmed
        async with opened(url) as restarted:
            assert [entry.key for entry in await restarted.scan("/")] == ["/kept"]

    with EtcdCluster() as etcd:
        run_story(lambda: story(etcd))
