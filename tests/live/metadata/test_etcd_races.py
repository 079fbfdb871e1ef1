"""Two things happen to the store in etcd at once: each test puts one of them into the worst moment of the other."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from ottla.metadata.etcd.client import EtcdClient, EtcdUnavailable
from ottla.metadata.etcd.large_commits import LargeCommits
from ottla.metadata.etcd.location import parse_location
from ottla.metadata.etcd.store import EtcdStore
from ottla.metadata.store import Change, Check, Conflict, Create, SessionExpired, Set
from tests.live.metadata.test_etcd_store import opened
from tests.support.processes.etcd import EtcdCluster
from tests.support.waiting import PATIENCE_S, eventually_async, run_story, stretched

_numbers = itertools.count()
MANY = [Create(f"/t/{number}", b"") for number in range(400)]


@pytest.fixture
def url(etcd: EtcdCluster) -> str:
    return etcd.url(f"/races-{next(_numbers)}")


def test_a_commit_that_arrives_just_before_its_repetition_is_executed_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives only after its session has looked for it and not found it."""
    original = EtcdClient.call
    late: list[Coroutine[Any, Any, Any]] = []
    is_armed = False

    async def call(client: EtcdClient, path: str, body: Any, **options: Any) -> Any:
        nonlocal is_armed
        if path == "kv/txn" and is_armed:
            is_armed = False
            late.append(original(client, path, body, **options))
            raise EtcdUnavailable("no answer in time", was_sent=True)
        if path == "kv/txn" and late:
            await late.pop()
        return await original(client, path, body, **options)

    monkeypatch.setattr(EtcdClient, "call", call)

    async def story() -> None:
        nonlocal is_armed
        async with opened(url) as store:
            await store.commit([Create("/a", b"0")])
            is_armed = True
            await store.commit([Set("/a", b"1")])
            found = await store.get("/a")
            assert found is not None
            assert (found.value, found.version) == (b"1", 1)

    run_story(story)


def test_a_commit_between_the_check_and_the_lock_of_a_large_commit_is_a_conflict(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with opened(url) as ann, opened(url) as bob:
            await ann.commit([Create("/a", b"0")])
            await bob.sync()
            execute = ann._writes.execute  # noqa: SLF001
            is_first = True

            async def overtaken(*arguments: Any) -> Any:
                nonlocal is_first
                if is_first:
                    is_first = False
                    await bob.commit([Set("/a", b"1")])
                return await execute(*arguments)

            monkeypatch.setattr(ann._writes, "execute", overtaken)  # noqa: SLF001
            with pytest.raises(Conflict, match="version 1, not 0"):
                await ann.commit([Check("/a", 0), *MANY])
            assert await bob.scan("/t/") == []

    run_story(story)


def test_a_large_commit_of_a_dead_process_is_completed_although_nobody_commits(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then its changes are held back, and so are all later ones: a broker that died would go unnoticed."""

    async def die(*_: Any) -> int:
        raise SessionExpired()

    async def story() -> None:
        ann = EtcdStore(parse_location(url), session_timeout_ms=stretched(1_000))
        await ann.start()
        async with opened(url) as bob:
            heard: list[Change] = []
            bob.watch("/t/", heard.extend)
            with monkeypatch.context() as patch:
                patch.setattr(ann._large, "roll_forward", die)  # noqa: SLF001
                with pytest.raises(SessionExpired):
                    await ann.commit(MANY)
            await eventually_async(lambda: len(heard) == len(MANY))
        await ann.close()

    run_story(story)


def test_a_watch_that_is_silent_while_etcd_answers_is_replaced(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection leads to a member that is cut off, or to nowhere; nothing closes it."""
    original = EtcdClient.stream
    silent = 0

    async def stream(client: EtcdClient, *arguments: Any) -> AsyncGenerator[dict[str, Any], None]:
        nonlocal silent
        if not silent:
            silent += 1
            await asyncio.Event().wait()
        async for message in original(client, *arguments):
            yield message

    monkeypatch.setattr(EtcdClient, "stream", stream)

    async def story() -> None:
        async with opened(url) as ann, opened(url) as bob:
            heard: list[str] = []
            ann.watch("/", lambda changes: heard.extend(change.key for change in changes))
            await asyncio.sleep(0)
            await bob.commit([Create("/a", b"")])
            await eventually_async(lambda: heard == ["/a"])
            assert silent == 1

    run_story(story)


def test_a_large_commit_abandoned_before_its_commit_point_does_not_block_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session lives on, and so does the lock: the session removes it itself."""

    async def fail(self: LargeCommits, *_: Any) -> None:
        raise SessionError("etcd did not answer")

    class SessionError(Exception):
        pass

    async def story() -> None:
        async with opened(url) as ann, opened(url) as bob:
            with monkeypatch.context() as patch:
                patch.setattr(LargeCommits, "_write_journal", fail)
                with pytest.raises(SessionError):
                    await ann.commit(MANY)
            async with asyncio.timeout(PATIENCE_S):
                await bob.commit([Create("/a", b"")])
            assert ann.session_id

    run_story(story)
