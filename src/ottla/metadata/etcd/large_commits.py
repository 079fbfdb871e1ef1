"""Commits that are too large for one transaction of etcd: still all or nothing, and one step for watchers.

1. The session takes the lock, which ends with the session. While it exists, nobody else commits, so what was checked
   against the session's copy of the entries stays true.
2. It writes every step into the journal.
3. The commit point: one transaction makes the lock permanent and applies what concerns ephemeral keys. If the process
   dies before, nothing has happened; the next large commit removes the journal.
4. It applies one step after the other. Each transaction counts the step in the lock, so no step is applied twice, and
   any session can continue: it does if it sees no progress. The last step removes the lock.

Watchers get nothing between 3 and the end of 4 (`local_copy.py`).
"""

import base64
import json
from collections.abc import Awaitable, Callable, Sequence

from ottla.metadata.etcd.client import EtcdClient, EtcdError, EtcdUnavailable
from ottla.metadata.etcd.local_copy import LocalCopy, Lock, read_lock, write_lock
from ottla.metadata.etcd.session_writes import ANSWER_TIMEOUT_S, SessionWrites
from ottla.metadata.etcd.transactions import (
    BYTES_MAX,
    KEYS_MAX,
    VALUE_BYTES_MAX,
    Json,
    Keys,
    Plan,
    check_all,
    comparisons,
    delete,
    modified_at,
    plan_large_commit,
    put,
    read,
    requests,
    size_of,
    version_is,
)
from ottla.metadata.store import Check, Operation, StoreUnavailable, check_operation
from ottla.types import compact_json

ATTEMPTS_MAX = 50


class LargeCommits:
    """The large commits of one session."""

    def __init__(self, client: EtcdClient, keys: Keys, lease: int, writes: SessionWrites, copy: LocalCopy) -> None:
        self._client = client
        self._keys = keys
        self._lease = lease
        self._writes = writes
        self._copy = copy
        self.in_progress = 0

    async def commit(self, operations: Sequence[Operation], until_unlocked: Callable[[], Awaitable[None]]) -> int:
        """Returns the revision of its last step. `until_unlocked` waits until the copy is current and no other
        large commit is under way."""
        check_sizes(operations)
        self.in_progress += 1
        try:
            locked_at, plan = await self._take_lock(operations, until_unlocked)
            steps = [_step_requests(self._keys, step, self._lease) for step in plan.steps]
            await self._write_journal(steps, locked_at)
            committed_at = await self._commit_point(plan, locked_at)
        finally:
            self.in_progress -= 1
        return await self.roll_forward(steps, committed_at)

    async def _take_lock(
        self, operations: Sequence[Operation], until_unlocked: Callable[[], Awaitable[None]]
    ) -> tuple[int, Plan]:
        keys, copy = self._keys, self._copy
        for _ in range(ATTEMPTS_MAX):
            await until_unlocked()
            check_all(copy.entries, operations)
            plan = plan_large_commit(copy.entries, operations)
            if sum(len(comparisons(keys, operation)) for operation in plan.head) > KEYS_MAX + 20:
                raise StoreUnavailable(f"a commit changes {len(plan.head)} ephemeral keys (limit: {KEYS_MAX})")
            outcome = await self._writes.execute(
                [version_is(keys.lock, 0), modified_at(keys.revision, copy.committed)],
                [put(keys.lock, write_lock(is_committed=False), lease=self._lease), delete(*keys.journal)],
            )
            if outcome.has_succeeded:
                return outcome.revision, plan
        raise StoreUnavailable(f"others changed the metadata concurrently, {ATTEMPTS_MAX} attempts failed")

    async def _write_journal(self, steps: Sequence[Sequence[Json]], locked_at: int) -> None:
        batch: list[Json] = []
        size = 0
        for number, step in enumerate(steps):
            value = compact_json(step)
            if batch and size + len(value) > BYTES_MAX:
                await self._while_locked(locked_at, batch)
                batch, size = [], 0
            batch.append(put(self._keys.journal_step(number), value))
            size += len(value)
        if batch:
            await self._while_locked(locked_at, batch)

    async def _while_locked(self, locked_at: int, changes: list[Json]) -> None:
        outcome = await self._writes.execute([modified_at(self._keys.lock, locked_at)], changes)
        if not outcome.has_succeeded:
            raise StoreUnavailable("the lock of a large commit was lost")

    async def _commit_point(self, plan: Plan, locked_at: int) -> int:
        keys = self._keys
        conditions = [each for operation in plan.head for each in comparisons(keys, operation)]
        changes = [each for operation in plan.head for each in requests(keys, operation, self._lease)]
        lock = write_lock(is_committed=True, steps=len(plan.steps))
        outcome = await self._writes.execute(
            [modified_at(keys.lock, locked_at), *conditions],
            [*changes, put(keys.lock, lock)],
            [read(keys.of(operation.key)) for operation in plan.head],
        )
        if outcome.has_succeeded:
            return outcome.revision
        await self.release(locked_at)
        for operation, found in zip(plan.head, outcome.found, strict=True):
            check_operation(operation, keys.entry(found[0]) if found else None)
        raise StoreUnavailable("the lock of a large commit was lost")

    async def release(self, locked_at: int) -> None:
        """Abandons a large commit before its commit point."""
        await self._writes.execute([modified_at(self._keys.lock, locked_at)], [delete(self._keys.lock)])

    async def roll_forward(self, steps: Sequence[Sequence[Json]] | None = None, revision: int = 0) -> int:
        """Applies the remaining steps of the large commit under way, this session's or another's. Returns a revision
        that has all of them."""
        keys = self._keys
        lock = None if steps is None else Lock(True, len(steps), 0, revision)
        while True:
            if lock is None:
                lock = await self._read_lock()
                if lock is None or not lock.is_committed:
                    return await self._last_commit()
            changes: list[Json] = []
            if lock.next_step < lock.steps:
                changes += await self._step(lock.next_step) if steps is None else steps[lock.next_step]
            next_step = lock.next_step + 1
            if next_step >= lock.steps:
                changes += [delete(keys.lock), delete(*keys.journal)]
            else:
                changes.append(put(keys.lock, write_lock(is_committed=True, steps=lock.steps, next_step=next_step)))
            outcome = await self._writes.execute([modified_at(keys.lock, lock.revision)], changes)
            if not outcome.has_succeeded:
                lock = None  # another session has applied this step
                steps = None
            elif next_step >= lock.steps:
                return outcome.revision
            else:
                lock = Lock(True, lock.steps, next_step, outcome.revision)

    async def _read_lock(self) -> Lock | None:
        kvs = await self._read(self._keys.lock)
        return read_lock(self._keys.entry(kvs[0])) if kvs else None

    async def _last_commit(self) -> int:
        # Not the revision in a response header: that counts the changes of other clusters in this etcd too.
        kvs = await self._read(self._keys.revision)
        return int(kvs[0]["mod_revision"]) if kvs else 0

    async def _step(self, number: int) -> list[Json]:
        kvs = await self._read(self._keys.journal_step(number))
        # If it is gone, so is the lock: the transaction fails, and the lock is read again.
        step: list[Json] = json.loads(base64.b64decode(kvs[0]["value"])) if kvs else []
        return step

    async def _read(self, key: str) -> list[Json]:
        try:
            found = await self._client.call("kv/range", {"key": key}, timeout_s=ANSWER_TIMEOUT_S)
        except (EtcdUnavailable, EtcdError) as error:
            raise StoreUnavailable(f"etcd does not answer: {error}") from error
        kvs: list[Json] = found.get("kvs", [])
        return kvs


def check_sizes(operations: Sequence[Operation]) -> None:
    for operation in operations:
        if not isinstance(operation, Check) and size_of(operation) > VALUE_BYTES_MAX:
            raise StoreUnavailable(
                f"{operation.key} has {size_of(operation)} bytes (limit in etcd: {VALUE_BYTES_MAX}). "
                "Use topics with fewer partitions."
            )


def _step_requests(keys: Keys, operations: Sequence[Operation], lease: int) -> list[Json]:
    return [each for operation in operations for each in requests(keys, operation, lease)]
