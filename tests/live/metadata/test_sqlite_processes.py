"""The SQLite metadata store with several processes: they crash or hang. Spec: B10."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.metadata.sqlite.store import SqliteStore
from ottla.metadata.store import Create
from tests.support.waiting import PATIENCE_S, eventually_async, run_story, slowness, stretched

if TYPE_CHECKING:
    from ottla.metadata.store import Change

OTHER_PROCESS = """
    import asyncio, sys
    from ottla.metadata.sqlite.store import SqliteStore
    from ottla.metadata.store import Create

    async def main():
        store = SqliteStore(sys.argv[1], session_timeout_ms=int(sys.argv[2]))
        await store.start()
        await store.commit([Create("/brokers/ids/9", b"other", ephemeral=True), Create("/written", b"kept")])
        print("ready", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.sqlite")


def start_other(path: str, session_timeout_ms: int = 18_000, program: str = OTHER_PROCESS) -> "subprocess.Popen[str]":
    """Another process with a session, an ephemeral key and a persistent key."""
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), path, str(session_timeout_ms)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    with other.stdout:
        assert other.stdout.readline() == "ready\n"
    return other


BRIEF_PROCESS = """
    import asyncio, sys
    from ottla.metadata.sqlite.store import SqliteStore

    async def main():
        store = SqliteStore(sys.argv[1], session_timeout_ms=int(sys.argv[2]))
        await store.start()
        await store.close()
        print("ready", flush=True)

    asyncio.run(main())
"""


def test_a_process_that_stops_leaves_the_write_ahead_log_to_the_others(path: str) -> None:
    """SQLite deletes the log with the last connection, and recognises others by their locks. Closing any handle of the
    file would drop the locks of this process: it must keep them, although it connects twice."""

    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        log = os.stat(f"{path}-wal").st_ino
        brief = start_other(path, program=BRIEF_PROCESS)
        assert brief.wait(PATIENCE_S) == 0
        assert os.stat(f"{path}-wal").st_ino == log
        await store.close()

    run_story(story)


def test_the_ephemeral_keys_of_a_killed_process_are_removed_immediately(path: str) -> None:
    """Spec: B11. After kill -9."""

    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        heard: list[Change] = []
        store.watch("/brokers/ids", heard.extend)
        other = start_other(path)
        try:
            await eventually_async(lambda: len(heard) == 1)
            assert heard[0].entry is not None
            assert heard[0].entry.value == b"other"
            other.kill()
            other.wait()
            await eventually_async(lambda: heard[-1].entry is None)
            kept = await store.get("/written")
            assert kept is not None
            assert kept.value == b"kept"
        finally:
            other.kill()
            other.wait()
            await store.close()

    run_story(story)


def test_a_hanging_process_expires_after_its_session_timeout(path: str) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        heard: list[Change] = []
        store.watch("/brokers/ids", heard.extend)
        other = start_other(path, session_timeout_ms=stretched(600))
        try:
            await eventually_async(lambda: len(heard) >= 1)
            os.kill(other.pid, signal.SIGSTOP)
            await eventually_async(lambda: heard[-1].entry is None)
        finally:
            other.kill()
            other.wait()
            await store.close()

    run_story(story)


STOPS_INSIDE_A_TRANSACTION = """
    import asyncio, os, signal, sys, time
    from ottla.metadata.sqlite.store import SqliteStore
    from ottla.metadata.store import Create

    async def main():
        store = SqliteStore(sys.argv[1], session_timeout_ms=int(sys.argv[2]))
        await store.start()
        await store.commit([Create("/brokers/ids/9", b"other", ephemeral=True)])
        print("ready", flush=True)
        # The signal may stop this thread a little later.
        store._apply = lambda *_: (os.kill(os.getpid(), signal.SIGSTOP), time.sleep(600))
        await store.commit([Create("/never", b"")])

    asyncio.run(main())
"""


def test_a_process_that_was_stopped_inside_a_transaction_is_killed(path: str) -> None:
    """It holds the write lock: nobody could change anything until it continues."""

    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        other = start_other(path, session_timeout_ms=stretched(600), program=STOPS_INSIDE_A_TRANSACTION)
        try:
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)  # noqa: ASYNC222 (the test has nothing else to do)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await store.commit([Create("/mine", b"")])
            await eventually_async(lambda: other.poll() == -signal.SIGKILL)
            assert loop.time() - began < 5 * slowness(), "less than SQLite's own timeout"
            assert await store.get("/never") is None
            # Its session ends after the commit that waited.
            while await store.get("/brokers/ids/9") is not None:  # noqa: ASYNC110 (in another thread)
                await asyncio.sleep(0.01)
        finally:
            other.kill()
            other.wait()
            await store.close()

    run_story(story)


def test_the_next_start_removes_the_session_of_a_crashed_process(path: str) -> None:
    other = start_other(path)
    other.kill()
    other.wait()

    async def story() -> None:
        store = SqliteStore(path)
        await store.start()
        assert await store.get("/brokers/ids/9") is None
        assert await store.get("/written") is not None
        await store.close()

    run_story(story)
    left = sorted(name for name in os.listdir(os.path.dirname(path)) if "session" in name)
    assert left == [], "lock files are cleaned up"
