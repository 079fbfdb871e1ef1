"""OWNER of one session with the metadata in etcd: its lease, its watch, and its copy of the entries.

The session is a lease, which is renewed three times in its lifetime. `is_confirmed` counts from the time at which the
last confirmed renewal was sent, by this machine's clock: etcd counts from its arrival, which is later. The clock also
runs while the machine is suspended, as etcd's does.

Changes come from one watch over all keys, in order, and are applied to a copy of the entries (`local_copy.py`). Reads
are answered from it after `sync`. A watch that breaks continues at the next revision on another member. If etcd has
compacted that revision, everything is read again, and watchers get the difference as one step.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ottla.clock import uptime_ms
from ottla.errors import OttlaError
from ottla.metadata.etcd.client import (
    FAILED_PRECONDITION,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    EtcdClient,
    EtcdError,
    EtcdUnavailable,
)
from ottla.metadata.etcd.large_commits import LargeCommits, check_sizes
from ottla.metadata.etcd.local_copy import LocalCopy, is_in_large_commit
from ottla.metadata.etcd.location import EtcdAccess, EtcdLocation
from ottla.metadata.etcd.session_writes import ANSWER_TIMEOUT_S, GIVE_UP_S, SessionWrites
from ottla.metadata.etcd.transactions import (
    Json,
    Keys,
    comparisons,
    fits_one_transaction,
    put,
    read,
    requests,
    version_is,
)
from ottla.metadata.store import (
    Change,
    Entry,
    MetadataStore,
    Operation,
    SessionExpired,
    StoreUnavailable,
    check_operation,
)

log = logging.getLogger("ottla.metadata")

PAGE_ENTRIES = 5_000
"""etcd counts all keys for every page, so pages are large."""
WATCH_LAG_S = 0.5
"""A watch that does not deliver a known revision for this long is continued on another member."""
HELP_AFTER_S = 0.5
"""A large commit without progress for this long is continued by other sessions."""
RETRY_S = 0.1
FIRST_START_S = 10.0


class EtcdStore(MetadataStore):
    """One session with the metadata under one prefix of etcd."""

    dead_sessions_linger = True

    def __init__(
        self,
        location: EtcdLocation,
        access: EtcdAccess | None = None,
        *,
        session_timeout_ms: int = 3_000,
        monotonic: Callable[[], float] = lambda: uptime_ms() / 1000,
    ) -> None:
        super().__init__()
        self.location = location
        self.session_id = 0
        self.session_timeout_ms = session_timeout_ms
        self._wanted_timeout_ms = session_timeout_ms
        self._monotonic = monotonic
        self._client = EtcdClient(location, access or EtcdAccess())
        self._keys = Keys(location.prefix)
        self._copy = LocalCopy(self._keys, "")
        self._writes: SessionWrites
        self._large: LargeCommits
        self._lease_id = 0
        """The lease of the session, also while it is being opened."""
        self._confirmed_at = 0.0
        self._last_seen = 0
        """The highest revision of a commit that this process has seen, in any session."""
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._commits: set[asyncio.Task[None]] = set()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._was_started = False
        self._problem = ""
        """The current problem; logged when it begins and when it ends."""

    # Sessions

    @property
    def is_confirmed(self) -> bool:
        return bool(self.session_id) and self._monotonic() - self._confirmed_at < self.session_timeout_ms / 1000

    async def start(self) -> None:
        give_up_at = self._monotonic() + (0.0 if self._was_started else FIRST_START_S)
        while True:
            try:
                await self._open_session()
                break
            except EtcdError as error:
                await self.close()
                raise OttlaError(f"etcd at {self.location} rejected the session: {error}", _hint(error)) from None
            except (EtcdUnavailable, StoreUnavailable, SessionExpired) as error:
                if self._monotonic() >= give_up_at:
                    await self.close()
                    raise OttlaError(
                        f"cannot use etcd at {self.location}: {error}",
                        "Check the addresses, that a majority of its members runs, and the scheme: "
                        "etcds:// for TLS, else etcd://.",
                    ) from None
                self._note_problem(f"cannot be reached, will be retried: {error}")
                await asyncio.sleep(RETRY_S)
        self._was_started = True
        self._note_problem("")

    def _note_problem(self, text: str) -> None:
        kind = text.partition(":")[0]
        if kind != self._problem:
            self._problem = kind
            log.log(logging.WARNING if text else logging.INFO, "%s: %s", self.location, text or "answers again")

    async def _open_session(self) -> None:
        await self._stop_tasks()
        sent_at = self._monotonic()
        seconds = -(-self._wanted_timeout_ms // 1000)
        lease = await self._call("lease/grant", {"TTL": str(seconds), "ID": "0"})
        # etcd has a minimum lease, which depends on its election timeout.
        self.session_timeout_ms = max(self._wanted_timeout_ms, int(lease["TTL"]) * 1000)
        self._confirmed_at = sent_at
        self._lease_id = lease_id = int(lease["ID"])
        # Reading everything may take longer than the lease.
        self._tasks = [asyncio.get_running_loop().create_task(self._renew(lease_id))]
        try:
            await self._call("kv/put", put(self._keys.session(lease_id), b"0", lease=lease_id)["request_put"])
            self._copy = LocalCopy(self._keys, f"//sessions/{lease_id:x}")
            self._writes = SessionWrites(self._client, self._keys, lease_id)
            self._large = LargeCommits(self._client, self._keys, lease_id, self._writes, self._copy)
            self._check_history(await self._read_last_commit())
            await self._load()
            if self._lease_id != lease_id:
                raise StoreUnavailable("the lease expired while the metadata was read")
        except BaseException:
            await self._revoke(lease_id)
            raise
        self.session_id = lease_id
        self._start_watching()

    async def close(self) -> None:
        session_id, self.session_id = self.session_id, 0
        await self._stop_tasks()
        commits = list(self._commits)
        for task in commits:
            task.cancel()
        await asyncio.gather(*commits, return_exceptions=True)
        if session_id:
            await self._revoke(session_id)
        self._client.close()

    async def _stop_tasks(self) -> None:
        tasks, self._tasks = [*self._tasks, *([self._watching] if self._watching else [])], []
        self._watching = None
        self._lease_id = 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._wake_all()

    async def _revoke(self, lease_id: int) -> None:
        """Ends the session and removes its ephemeral keys. If etcd does not answer, they end with the lease."""
        try:
            async with asyncio.timeout(min(2.0, self._wanted_timeout_ms / 1000)):
                await self._call("lease/revoke", {"ID": str(lease_id)})
        except (EtcdUnavailable, EtcdError, TimeoutError):
            pass

    async def _renew(self, lease_id: int) -> None:
        """Renews the lease, and detects a watch or a large commit that makes no progress."""
        while self._lease_id == lease_id:
            interval_s = self.session_timeout_ms / 3000
            sent_at = self._monotonic()
            try:
                answer = await self._call("lease/keepalive", {"ID": str(lease_id)}, timeout_s=interval_s * 0.7)
                if int(answer.get("TTL", 0)) <= 0:
                    self._lose_session()
                    return
                self._confirmed_at = sent_at
                if self.session_id:
                    await self._check_progress()
                self._note_problem("")
            except (EtcdUnavailable, EtcdError, StoreUnavailable) as error:
                self._note_problem(f"does not answer, metadata cannot be changed: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            except SessionExpired:
                self._lose_session()
                return
            except Exception:
                # Without renewals the session would end.
                log.exception("%s: cannot be used, will be retried", self.location)
                await asyncio.sleep(RETRY_S)
                continue
            await asyncio.sleep(max(0.0, sent_at + interval_s - self._monotonic()))

    async def _check_progress(self) -> None:
        copy = self._copy
        revision = await self._last_commit()
        if copy.received < revision and not await self._reached(lambda: copy.received >= revision, WATCH_LAG_S):
            log.warning("%s: the watch does not deliver revision %d; restarting it", self.location, revision)
            self._start_watching()
        lock = copy.lock
        if lock is None or await self._reached(lambda: copy.lock != lock, HELP_AFTER_S):
            return
        if lock.is_committed:
            await self._large.roll_forward()
        elif not self._large.in_progress:
            # It may be this session's own lock, of an abandoned commit. Otherwise this changes nothing.
            await self._release_own_lock()

    async def _release_own_lock(self) -> None:
        found = (await self._call("kv/range", {"key": self._keys.lock})).get("kvs")
        if found and int(found[0].get("lease", 0)) == self.session_id:
            await self._large.release(int(found[0]["mod_revision"]))

    def _lose_session(self) -> None:
        self._lease_id = 0
        if not self.session_id:
            return
        log.warning("session %x: expired", self.session_id)
        self.session_id = 0
        if self._watching is not None:
            self._watching.cancel()
        self._wake_all()
        if self.on_expired is not None:
            asyncio.get_running_loop().call_soon(self.on_expired)

    def _require_session(self) -> None:
        if not self.session_id:
            raise SessionExpired()

    # Reading

    async def get(self, key: str) -> Entry | None:
        await self.sync()
        return self._copy.entries.get(key)

    async def scan(self, prefix: str) -> list[Entry]:
        await self.sync()
        return sorted(entry for entry in self._copy.entries.values() if entry.key.startswith(prefix))

    async def sync(self) -> None:
        copy = self._copy
        await self._delivered(copy, await self._require_last_commit())

    async def _require_last_commit(self) -> int:
        """The same, for a caller that needs a session and an answer: raises SessionExpired or StoreUnavailable."""
        self._require_session()
        try:
            return await self._last_commit()
        except (EtcdUnavailable, EtcdError) as error:
            raise StoreUnavailable(f"etcd does not answer: {error}") from error

    async def _last_commit(self) -> int:
        """The revision of the last commit of any session."""
        seen = self._last_seen  # read before the request is sent: concurrent answers can overtake each other
        revision = await self._read_last_commit()
        if revision < seen:
            log.error("%s: the last commit is at revision %d, but was at %d", self.location, revision, seen)
            self._lose_session()  # opening the next one fails with an error that has a hint
            raise SessionExpired()
        self._last_seen = max(self._last_seen, revision)
        return revision

    async def _read_last_commit(self) -> int:
        """A linearizable read: a majority must confirm it."""
        found = await self._call("kv/range", {"key": self._keys.revision})
        return int(found["kvs"][0]["mod_revision"]) if found.get("kvs") else 0

    def _check_history(self, revision: int) -> None:
        """Raises if the last commit is older than one that was seen: etcd was restored from a backup.

        To a running broker, topics missing in the backup would look deleted.
        """
        if revision < self._last_seen:
            raise OttlaError(
                f"etcd at {self.location} has lost commits: the last is at revision {revision}, this broker has seen "
                f"{self._last_seen}. Was it restored from a backup?",
                "Stop all brokers and start them again to continue with what etcd has now. Partitions that it does not "
                "know stay on disk, in directories that end with -stray.",
            )

    async def _delivered(self, copy: LocalCopy, revision: int) -> None:
        """Returns when watchers have everything up to a revision."""
        self._last_seen = max(self._last_seen, revision)
        if not await self._reached(lambda: copy.delivered >= revision, GIVE_UP_S):
            raise StoreUnavailable(f"{self.location}: the watch does not deliver revision {revision}")
        self._require_session()

    async def _load(self) -> list[Change]:
        """Reads everything at one revision. Returns what is different from before."""
        while True:
            entries, revision = await self._read_all()
            if not is_in_large_commit(entries):
                break
            await asyncio.sleep(RETRY_S)
            await self._large.roll_forward()
        return self._copy.load(entries.values(), revision)

    async def _read_all(self) -> tuple[dict[str, Entry], int]:
        entries: dict[str, Entry] = {}
        begin, revision = self._keys.begin, 0
        while True:
            body: Json = {"key": begin, "range_end": self._keys.end, "limit": str(PAGE_ENTRIES)}
            if revision:
                body["revision"] = str(revision)
            answer = await self._call("kv/range", body)
            revision = revision or int(answer["header"]["revision"])
            page = [self._keys.entry(kv) for kv in answer.get("kvs", [])]
            entries.update((entry.key, entry) for entry in page)
            if not answer.get("more"):
                return entries, revision
            begin = self._keys.of(page[-1].key + "\0")

    # Writing

    async def commit(self, operations: Sequence[Operation]) -> None:
        self._require_session()
        # In a separate task: if the caller is cancelled, the commit still completes or fails.
        task = asyncio.get_running_loop().create_task(self._commit(list(operations)))
        self._commits.add(task)
        task.add_done_callback(self._committed)
        await asyncio.shield(task)

    def _committed(self, task: "asyncio.Task[None]") -> None:
        self._commits.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone

    async def _commit(self, operations: list[Operation]) -> None:
        copy = self._copy
        try:
            check_sizes(operations)
            if fits_one_transaction(operations):
                revision = await self._commit_at_once(operations)
            else:
                revision = await self._large.commit(operations, self._unlocked)
        except SessionExpired:
            if copy is self._copy:
                self._lose_session()
            raise
        await self._delivered(copy, revision)

    async def _commit_at_once(self, operations: list[Operation]) -> int:
        keys, lease = self._keys, self.session_id
        conditions = [each for operation in operations for each in comparisons(keys, operation)]
        changes = [each for operation in operations for each in requests(keys, operation, lease)]
        # An operation has up to two conditions, but one read.
        names = list(dict.fromkeys(operation.key for operation in operations))
        reads = [read(keys.lock), *(read(keys.of(name)) for name in names)]
        while True:
            self._require_session()
            outcome = await self._writes.execute([version_is(keys.lock, 0), *conditions], changes, reads)
            if outcome.has_succeeded:
                return outcome.revision
            lock, *found = outcome.found
            if lock:
                await self._unlocked()
                continue
            entries = {name: keys.entry(kvs[0]) for name, kvs in zip(names, found, strict=True) if kvs}
            for operation in operations:
                check_operation(operation, entries.get(operation.key))

    async def _unlocked(self) -> None:
        """Returns when the copy is current and no large commit is under way. Continues one whose session is gone."""
        give_up_at = self._monotonic() + GIVE_UP_S
        while True:
            copy = self._copy
            await self.sync_received()
            lock = copy.lock
            if lock is None:
                return
            if not await self._reached(lambda: copy.lock != lock, HELP_AFTER_S):  # noqa: B023 - awaited at once
                if lock.is_committed:
                    await self._large.roll_forward()
                elif self._monotonic() >= give_up_at:
                    raise StoreUnavailable(f"{self.location}: another broker's large commit does not complete")

    async def sync_received(self) -> None:
        """Like `sync`, but in the middle of a large commit it does not wait for its end."""
        copy = self._copy
        revision = await self._require_last_commit()
        if not await self._reached(lambda: copy.received >= revision, GIVE_UP_S):
            raise StoreUnavailable(f"{self.location}: the watch does not deliver revision {revision}")
        self._require_session()

    # Watching

    def _start_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._watching = asyncio.get_running_loop().create_task(self._watch(self._copy))

    async def _watch(self, copy: LocalCopy) -> None:
        while self.session_id and copy is self._copy:
            member = self._client.member
            try:
                await self._follow(copy)
            except EtcdUnavailable:
                self._client.avoid(member)
            except EtcdError as error:
                log.warning("%s: cannot be watched, will be retried: %s", self.location, error)
            except Exception:
                log.exception("%s: cannot be watched, will be retried", self.location)
            await asyncio.sleep(RETRY_S)

    async def _follow(self, copy: LocalCopy) -> None:
        """Follows one watch until it breaks."""
        create = {
            "key": self._keys.begin,
            "range_end": self._keys.end,
            "start_revision": str(copy.received + 1),
        }
        messages = self._client.stream("watch", {"create_request": create}, self._client.member)
        async with contextlib.aclosing(messages):
            async for message in messages:
                if self._copy is not copy or not self.session_id:
                    return
                if int(message.get("compact_revision", 0)):
                    await self._recover(copy)
                    return
                if message.get("canceled"):
                    return
                if events := message.get("events"):
                    self._deliver(copy.receive(events))

    async def _recover(self, copy: LocalCopy) -> None:
        """etcd no longer has the changes since the last revision that was received."""
        log.warning("%s: compacted revision %d; reading everything again", self.location, copy.received)
        try:
            self._deliver(await self._load())
        except (StoreUnavailable, SessionExpired) as error:
            log.warning("%s: cannot be read, will be retried: %s", self.location, error)

    def _deliver(self, changes: Sequence[Change]) -> None:
        if not self._copy.is_session_alive:
            self._lose_session()
            return
        if changes:
            self._call_watchers(changes)
        waiting, self._waiting = self._waiting, []
        for is_reached, future in waiting:
            if future.done():
                continue
            if is_reached():
                future.set_result(None)
            else:
                self._waiting.append((is_reached, future))

    async def _reached(self, is_reached: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until the copy meets a condition; False after the timeout. SessionExpired if the session ends."""
        if is_reached():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((is_reached, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return is_reached()
        return True

    def _wake_all(self) -> None:
        """Fails all waits: the session has ended."""
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(SessionExpired())

    async def _call(self, path: str, body: Json, *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        return await self._client.call(path, body, timeout_s=timeout_s)


def _hint(error: EtcdError) -> str:
    if error.code == FAILED_PRECONDITION:
        return "Remove ottla.etcd.user and ottla.etcd.password, or enable authentication in etcd."
    if "space exceeded" in str(error) or error.code == RESOURCE_EXHAUSTED:
        return "Compact and defragment etcd, or raise its --quota-backend-bytes; then: etcdctl alarm disarm."
    if error.code == PERMISSION_DENIED:
        return "Give the user of ottla.etcd.user a role that may read and write this prefix."
    return "Check ottla.etcd.user and ottla.etcd.password."
