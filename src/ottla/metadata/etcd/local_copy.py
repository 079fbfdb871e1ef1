"""A session's copy of the cluster's entries, kept current by etcd's watch, and the changes to deliver. Pure.

A large commit is several transactions of etcd. From its commit point until its lock is gone, changes are collected and
not delivered: watchers see it as one step.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.metadata.etcd.transactions import Json, Keys
from ottla.metadata.store import Change, Entry

_LOCK, _REVISION = "//lock", "//revision"


class Lock(NamedTuple):
    """The lock of a large commit. While it is `prepared` only, nothing has changed."""

    is_committed: bool
    steps: int
    next_step: int
    revision: int
    """The revision at which the lock was last written."""


def write_lock(*, is_committed: bool, steps: int = 0, next_step: int = 0) -> bytes:
    return json.dumps({"committed": is_committed, "steps": steps, "next": next_step}).encode()


def read_lock(entry: Entry) -> Lock:
    fields: dict[str, Any] = json.loads(entry.value)
    return Lock(bool(fields["committed"]), int(fields["steps"]), int(fields["next"]), entry.modified)


class LocalCopy:
    """Entries as of `delivered`, a revision of etcd."""

    def __init__(self, keys: Keys, session: str) -> None:
        self._keys = keys
        self._session = session
        """The name of this session's own key."""
        self.entries: dict[str, Entry] = {}
        self.delivered = 0
        """The revision of `entries`, which watchers have received too."""
        self.received = 0
        """The last revision that etcd's watch has delivered."""
        self.committed = 0
        """The revision of the last commit that `entries` has."""
        self.lock: Lock | None = None
        self.is_session_alive = True
        self._held: dict[str, Change] = {}
        self._held_commit = 0

    @property
    def is_holding(self) -> bool:
        """Whether a large commit is being applied."""
        return self.lock is not None and self.lock.is_committed

    def load(self, entries: Iterable[Entry], revision: int) -> list[Change]:
        """Replaces everything by a scan at one revision. Returns what is different, as one step.

        The scan must not be from the middle of a large commit.
        """
        before, self.entries = self.entries, {}
        self.lock, self.is_session_alive, self._held = None, False, {}
        changes = []
        for entry in entries:
            if entry.key.startswith("//"):
                self._note_own(entry.key, entry)
                continue
            known = before.pop(entry.key, None)
            if known is not None and known.modified == entry.modified:
                entry = known
            else:
                changes.append(Change(entry.key, entry, entry.modified))
            self.entries[entry.key] = entry
        assert not self.is_holding, "a large commit is being applied"
        changes += [Change(key, None, revision) for key in before]
        self.committed = max(self.committed, self._held_commit)
        self.delivered = self.received = revision
        return changes

    def receive(self, events: Iterable[Json]) -> list[Change]:
        """Applies what etcd's watch reports, in whole revisions. Returns the changes to deliver, one for each key."""
        by_revision: dict[int, list[Json]] = {}
        for event in events:
            by_revision.setdefault(int(event["kv"]["mod_revision"]), []).append(event)
        deliverable: dict[str, Change] = {}
        for revision, of_revision in sorted(by_revision.items()):
            if revision <= self.received:
                continue  # repeated after a reconnection
            for event in of_revision:
                entry = self._keys.entry(event["kv"])
                is_removed = event.get("type") == "DELETE"
                if entry.key.startswith("//"):
                    self._note_own(entry.key, None if is_removed else entry)
                else:
                    # Only the last change of a key is delivered, at its place in the order.
                    self._held.pop(entry.key, None)
                    self._held[entry.key] = Change(entry.key, None if is_removed else entry, revision)
            self.received = revision
            if not self.is_holding:
                for key, change in self._held.items():
                    deliverable.pop(key, None)
                    deliverable[key] = change
                self._apply_held(revision)
        return list(deliverable.values())

    def _apply_held(self, revision: int) -> None:
        for key, change in self._held.items():
            if change.entry is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = change.entry
        self._held = {}
        self.delivered = revision
        self.committed = max(self.committed, self._held_commit)

    def _note_own(self, key: str, entry: Entry | None) -> None:
        if key == _LOCK:
            self.lock = None if entry is None else read_lock(entry)
        elif key == _REVISION and entry is not None:
            self._held_commit = entry.modified
        elif key == self._session:
            self.is_session_alive = entry is not None


def is_in_large_commit(entries: Mapping[str, Entry]) -> bool:
    """Whether a scan is from the middle of a large commit."""
    lock = entries.get(_LOCK)
    return lock is not None and read_lock(lock).is_committed
