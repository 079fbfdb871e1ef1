"""Tests of the SQLite store only: session timeouts, durability, polling, invalid files."""

# ruff: noqa: SLF001 (these tests drive timers by hand and look at the SQLite connection)

import asyncio
import contextlib
import itertools
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import OttlaError
from ottla.metadata.sqlite.session_locks import Peers, SessionLocks
from ottla.metadata.sqlite.store import SqliteStore
from ottla.metadata.store import Change, Conflict, Create, Delete, Set, StoreUnavailable
from tests.support.waiting import eventually_async, run_story


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.sqlite")


def test_session_timeouts_are_measured_with_the_observers_clock(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file system's clock may be too coarse to distinguish two touches.
    moments, touch = itertools.count(1), os.utime
    monkeypatch.setattr(os, "utime", lambda handle: touch(handle, ns=(next(moments),) * 2))

    async def story() -> None:
        clock = Clock()
        ann = SqliteStore(path, session_timeout_ms=6000, monotonic=clock)
        bob = SqliteStore(path, session_timeout_ms=6000, monotonic=clock)
        await ann.start()
        await bob.start()
        expired = asyncio.Event()
        ann.on_expired = expired.set
        bob._poll()
        for _ in range(5):
            clock.now += 3
            ann._poll()  # ann is alive and touches its file
            bob._poll()
        assert bob._expiring == set()
        clock.now += 6.1
        bob._check_peers()
        assert len(bob._expiring) == 1
        await expired.wait()
        assert ann.session_id == 0
        await ann.close()
        await bob.close()

    run_story(story)


def test_commits_survive_closing_and_reopening(path: str) -> None:
    async def story() -> None:
        for number in range(3):
            store = SqliteStore(path)
            await store.start()
            await store.commit([Create(f"/{number}", b"v")])
            assert [entry.key for entry in await store.scan("/")] == [f"/{n}" for n in range(number + 1)]
            await store.close()

    run_story(story)


def test_commits_are_synced_to_disk(path: str) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        assert store._writer is not None
        assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
        await store.close()

    run_story(story)


def test_commits_run_in_the_writer_thread(path: str) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        threads = []
        commit = store._commit

        def noting(*arguments: Any) -> None:
            threads.append(threading.current_thread())
            commit(*arguments)

        store._commit = noting  # type: ignore[method-assign, assignment]
        await store.commit([Create("/a", b"")])
        assert len(threads) == 1
        assert threads[0] is not threading.main_thread()
        await store.close()

    run_story(story)


def test_a_cancelled_commit_is_still_delivered_to_watches(path: str) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        heard: list[Change] = []
        store.watch("/", heard.extend)
        commit = asyncio.create_task(store.commit([Create("/a", b"")]))
        await asyncio.sleep(0)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        await eventually_async(lambda: [change.key for change in heard] == ["/a"])
        await store.close()

    run_story(story)


def test_polling_is_frequent_only_while_other_sessions_exist(path: str) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        ann = SqliteStore(path)
        began = loop.time()
        await ann.start()
        assert ann._timer is not None
        assert ann._timer.when() - began > 0.5
        bob = SqliteStore(path)
        await bob.start()
        assert bob._timer is not None
        assert bob._timer.when() - loop.time() < 0.1
        await bob.close()
        await ann.close()

    run_story(story)


def test_old_removals_are_purged_and_a_session_that_missed_them_expires(path: str) -> None:
    async def story() -> None:
        now, still = [1_000_000], Clock()
        ann = SqliteStore(path, session_timeout_ms=1000, clock=lambda: now[0], monotonic=still)
        bob = SqliteStore(path, session_timeout_ms=1000, clock=lambda: now[0], monotonic=still)
        await ann.start()
        await bob.start()
        assert bob._timer is not None
        bob._timer.cancel()  # bob stops polling, and nobody wakes it
        bob._wake_ups.close()
        lost = asyncio.Event()
        bob.on_expired = lost.set
        await ann.commit([Create("/a", b""), Create("/b", b"")])
        await ann.commit([Delete("/a")])
        now[0] += 11_000
        await ann.commit([Delete("/b")])
        assert ann._writer is not None
        assert ann._writer.execute("SELECT key FROM removals").fetchall() == [("/b",)]
        await bob.sync()
        await lost.wait()
        await ann.close()
        await bob.close()

    run_story(story)


def test_a_commit_fails_on_a_full_disk_and_works_again_later(path: str) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        assert store._writer is not None
        pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StoreUnavailable, match="full"):
            await store.commit([Create("/a", bytes(100_000))])
        assert await store.get("/a") is None
        store._writer.execute("PRAGMA max_page_count = 100000")
        await store.commit([Create("/a", bytes(100_000))])
        await store.close()

    run_story(story)


def test_a_conflict_leaves_the_writer_usable(path: str) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        for _ in range(3):
            with pytest.raises(Conflict):
                await store.commit([Set("/missing", b"")])
        await store.commit([Create("/a", b"")])
        await store.close()

    run_story(story)


def test_a_file_that_is_not_a_database_is_reported_with_its_path(path: str) -> None:
    Path(path).write_bytes(b"this is not a database, whatever its name says" * 100)

    async def story() -> None:
        with pytest.raises(OttlaError, match=r"metadata\.sqlite"):
            await SqliteStore(path).start()

    run_story(story)


def test_a_missing_directory_is_reported_with_its_path(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(OttlaError, match="nowhere"):
            await SqliteStore(str(tmp_path / "nowhere" / "metadata.sqlite")).start()

    run_story(story)


def test_a_newer_schema_version_is_rejected(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()

    async def story() -> None:
        with pytest.raises(OttlaError, match="schema version 7"):
            await SqliteStore(path).start()

    run_story(story)


def test_concurrent_starts_on_a_new_file_all_get_a_session(path: str) -> None:
    async def story() -> None:
        stores = [SqliteStore(path) for _ in range(4)]
        await asyncio.gather(*(store.start() for store in stores))
        assert len({store.session_id for store in stores}) == 4
        for store in stores:
            await store.close()

    run_story(story)


def test_a_start_waits_while_another_process_creates_the_file(path: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")

        async def story() -> None:
            store = SqliteStore(path)
            starting = asyncio.create_task(store.start())
            await asyncio.wait([starting], timeout=0.2)
            assert not starting.done()
            other.execute("COMMIT")
            await starting
            await store.close()

        run_story(story)


def test_a_session_that_was_not_touched_in_time_is_no_longer_confirmed(path: str) -> None:
    """A process that was stopped for longer than its session knows it before it does anything else."""

    async def story() -> None:
        clock = Clock()
        store = SqliteStore(path, session_timeout_ms=6000, monotonic=clock)
        await store.start()
        try:
            assert store.is_confirmed
            clock.now += 5.9
            assert store.is_confirmed
            clock.now += 0.2
            assert not store.is_confirmed
            store._poll()
            assert store.is_confirmed, "nobody ended it meanwhile"
        finally:
            await store.close()
        assert not store.is_confirmed

    run_story(story)


def test_other_sessions_are_woken_by_a_commit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not have to poll often to see changes at once."""
    monkeypatch.setattr("ottla.metadata.sqlite.store.POLL_TOGETHER_SECONDS", 50.0)

    async def story() -> None:
        ann, bob = SqliteStore(path), SqliteStore(path)
        await ann.start()
        await bob.start()
        heard: list[Change] = []
        ann.watch("/", heard.extend)
        await bob.commit([Create("/a", b"")])
        await eventually_async(lambda: [change.key for change in heard] == ["/a"])
        await bob.close()
        await eventually_async(lambda: not ann._peers.known)
        await ann.close()
        assert sorted(os.listdir(Path(path).parent)) == ["metadata.sqlite"], "no pipe is left behind"

    run_story(story)


def test_a_full_disk_is_no_reason_to_work_on_a_copy_while_others_use_the_file(path: str) -> None:
    """Two brokers with a copy each would be two clusters."""

    async def story() -> None:
        ann, bob = SqliteStore(path), SqliteStore(path)
        await ann.start()
        with pytest.raises(OttlaError, match="1 other brokers use it"):
            bob._open_copy(OSError("disk full"))
        assert not bob.session_id
        await ann.close()

    run_story(story)


# Processes that hang


class FakeLocks(SessionLocks):
    """The other session's process is alive, and never touches its file."""

    def __init__(self, path: str, *, writer: int | None) -> None:
        super().__init__(path)
        self.writer = writer
        Path(self.path(7)).write_text("4711")

    def is_held(self, session_id: int) -> bool:
        return True

    def writing_process(self) -> int | None:
        return self.writer


@pytest.mark.parametrize(("writer", "killed"), [(4711, [4711]), (4712, []), (0, []), (None, [4711])])
def test_a_process_that_hangs_inside_a_transaction_is_killed(path: str, writer: int | None, killed: list[int]) -> None:
    """Only if it holds the write lock, where the system says who holds it."""
    ended: list[int] = []
    peers = Peers(FakeLocks(path, writer=writer), ended.append)
    peers.update({7: 1000}, 0.0)
    assert peers.lost(0.5) == []
    assert peers.lost(1.4) == []
    assert peers.lost(1.6) == [7], "silent for a session timeout: its session is to be ended"
    assert peers.lost(1.7) == []
    assert ended == []
    assert peers.lost(2.0) == [], "the session could not be ended: somebody holds the write lock"
    assert ended == killed


def test_a_process_that_answers_again_is_not_killed(path: str) -> None:
    ended: list[int] = []
    locks = FakeLocks(path, writer=4711)
    peers = Peers(locks, ended.append)
    peers.update({7: 1000}, 0.0)
    peers.lost(0.5)
    assert peers.lost(1.6) == [7]
    os.utime(locks.path(7), ns=(1, 1))
    peers.lost(2.0)
    assert ended == []
