"""OWNER of the transactions of one session: each is executed once or not at all, even if an answer is lost.

Every transaction requires the version of the session's own key, and writes that key. After a lost answer the key shows
if the transaction was executed; if not, writing the key makes sure that it never will be.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ottla.clock import monotonic
from ottla.metadata.etcd.client import NOT_FOUND, EtcdClient, EtcdError, EtcdUnavailable
from ottla.metadata.etcd.transactions import Json, Keys, put, read, version_is
from ottla.metadata.store import SessionExpired, StoreUnavailable

ANSWER_TIMEOUT_S = 3.0
GIVE_UP_S = 10.0
"""A transaction that could not be executed by then fails with StoreUnavailable."""
PAUSE_S = 0.1


class Outcome(NamedTuple):
    has_succeeded: bool
    revision: int
    found: Sequence[list[Json]] = ()
    """If it has not: the keys and values that each read of `otherwise` found."""


class SessionWrites:
    """The transactions of the session with this lease, whose key exists with version 1."""

    def __init__(self, client: EtcdClient, keys: Keys, lease: int) -> None:
        self._client = client
        self._keys = keys
        self._key = keys.session(lease)
        self._version = 1
        self._tokens = itertools.count(1)
        self._unsettled: bytes | None = None
        """The token of a transaction whose outcome is not known."""
        self._mutex = asyncio.Lock()

    async def execute(
        self, conditions: Sequence[Json], changes: Sequence[Json], otherwise: Sequence[Json] = ()
    ) -> Outcome:
        """Executes `changes` if all `conditions` hold, else the reads in `otherwise`. It is a commit: the revision of
        the last commit is written too.

        SessionExpired: nothing was executed. StoreUnavailable: unknown.
        """
        async with self._mutex:
            give_up_at = monotonic() + GIVE_UP_S
            if self._unsettled is not None:
                await self._settle(give_up_at)
            while True:
                token = b"%d" % next(self._tokens)
                body = {
                    "compare": [version_is(self._key, self._version), *conditions],
                    "success": [put(self._key, token, keep_lease=True), put(self._keys.revision, b""), *changes],
                    "failure": [read(self._key), *otherwise],
                }
                try:
                    answer = await self._client.call("kv/txn", body, timeout_s=ANSWER_TIMEOUT_S, repeat=False)
                except EtcdError as error:
                    raise _not_accepted(error) from error
                except EtcdUnavailable as error:
                    if error.was_sent:
                        self._unsettled = token
                        revision = await self._settle(give_up_at)
                        if revision is not None:
                            return Outcome(True, revision)
                    await _pause(give_up_at, error)
                    continue
                except asyncio.CancelledError:
                    self._unsettled = token
                    raise
                if answer.get("succeeded"):
                    self._version += 1
                    return Outcome(True, int(answer["header"]["revision"]))
                own, *found = [each["response_range"].get("kvs", []) for each in answer["responses"]]
                if not own or int(own[0]["version"]) < self._version:
                    # The key is gone, or older than it was: etcd has been restored from a backup.
                    raise SessionExpired()
                if int(own[0]["version"]) != self._version:
                    self._version = int(own[0]["version"])
                    continue
                return Outcome(False, int(answer["header"]["revision"]), found)

    async def _settle(self, give_up_at: float) -> int | None:
        """Determines whether the transaction without an answer was executed: its revision, or None if it was not and
        never will be."""
        while True:
            try:
                found = await self._client.call("kv/range", {"key": self._key}, timeout_s=ANSWER_TIMEOUT_S)
                if not (kvs := found.get("kvs")):
                    raise SessionExpired()
                own = self._keys.entry(kvs[0])
                if own.value == self._unsettled or own.version + 1 != self._version:
                    was_executed = own.value == self._unsettled
                    self._version, self._unsettled = own.version + 1, None
                    return own.modified if was_executed else None
                # It may still be in flight. From now on its condition does not hold.
                fence = {
                    "compare": [version_is(self._key, self._version)],
                    "success": [put(self._key, b"fence", keep_lease=True)],
                }
                await self._client.call("kv/txn", fence, timeout_s=ANSWER_TIMEOUT_S, repeat=False)
            except EtcdUnavailable as error:
                await _pause(give_up_at, error)
            except EtcdError as error:
                raise _not_accepted(error) from error


async def _pause(give_up_at: float, error: EtcdUnavailable) -> None:
    if monotonic() >= give_up_at:
        raise StoreUnavailable(f"etcd does not answer: {error}") from error
    await asyncio.sleep(PAUSE_S)


def _not_accepted(error: EtcdError) -> Exception:
    if error.code == NOT_FOUND and "lease" in str(error):
        return SessionExpired()
    return StoreUnavailable(f"etcd rejected a commit: {error}")
