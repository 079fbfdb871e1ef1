"""Commits as transactions of etcd: comparisons and requests in the JSON of its gateway, entries from answers. Pure.

A cluster's keys are `<prefix>/brokers/...`. The store's internal keys begin with `<prefix>//`:

- `//revision` is written by every commit. Its revision is that of the last commit.
- `//sessions/<lease>` exists as long as a session. Each commit of the session requires its version and writes it, so a
  session that has ended cannot commit, and the outcome of a lost answer can be determined.
- `//lock` and `//journal/...` belong to commits that are too large for one transaction: see `large_commits.py`.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Entry,
    Operation,
    Set,
    check_operation,
)

KEYS_MAX = 100
"""The most comparisons, and the most requests, in one transaction. etcd allows 128 by default; the store adds
some."""
BYTES_MAX = 512 << 10
"""The most bytes of values and keys in one transaction. etcd allows 1.5 MB a request by default."""
VALUE_BYTES_MAX = 1 << 20

Json = dict[str, Any]


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Keys:
    """The keys of one cluster."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._length = len(prefix.encode())
        self.begin, self.end = encode(f"{prefix}/".encode()), encode(f"{prefix}0".encode())
        """Every key of the cluster is in this range: `0` is the character after `/`."""
        self.revision = self.of("//revision")
        self.lock = self.of("//lock")
        self.sessions = self.of("//sessions/"), self.of("//sessions0")
        self.journal = self.of("//journal/"), self.of("//journal0")

    def of(self, key: str) -> str:
        """A key as etcd's gateway expects it.

        >>> base64.b64decode(Keys("/shop").of("/brokers"))
        b'/shop/brokers'
        """
        return encode((self._prefix + key).encode())

    def session(self, lease: int) -> str:
        return self.of(f"//sessions/{lease:x}")

    def journal_step(self, number: int) -> str:
        return self.of(f"//journal/{number:08}")

    def entry(self, kv: Json) -> Entry:
        """An entry from etcd's key and value. The port's versions begin at 0, etcd's at 1."""
        return Entry(
            base64.b64decode(kv["key"])[self._length :].decode(),
            base64.b64decode(kv.get("value", "")),
            int(kv.get("version", 0)) - 1,
            int(kv.get("create_revision", 0)),
            int(kv.get("mod_revision", 0)),
            int(kv.get("lease", 0)),
        )


# Parts of a transaction


def version_is(key: str, version: int) -> Json:
    """`version` is etcd's: 0 means that the key does not exist."""
    return {"key": key, "target": "VERSION", "result": "EQUAL", "version": str(version)}


def exists(key: str) -> Json:
    return {"key": key, "target": "VERSION", "result": "GREATER", "version": "0"}


def created_at(key: str, revision: int) -> Json:
    return {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def modified_at(key: str, revision: int) -> Json:
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def put(key: str, value: bytes, *, lease: int = 0, keep_lease: bool = False) -> Json:
    request: Json = {"key": key, "value": encode(value)}
    if lease:
        request["lease"] = str(lease)
    if keep_lease:
        request["ignore_lease"] = True
    return {"request_put": request}


def delete(key: str, end: str = "") -> Json:
    return {"request_delete_range": {"key": key, **({"range_end": end} if end else {})}}


def read(key: str) -> Json:
    return {"request_range": {"key": key}}


# Operations


def comparisons(keys: Keys, operation: Operation) -> list[Json]:
    """What must hold in etcd for an operation to succeed."""
    key = keys.of(operation.key)
    if isinstance(operation, Create):
        return [version_is(key, 0)]
    found = [] if operation.version == ANY_VERSION else [version_is(key, operation.version + 1)]
    if isinstance(operation, Check) and operation.created != ANY_VERSION:
        found.append(created_at(key, operation.created))
    return found or [exists(key)]


def requests(keys: Keys, operation: Operation, lease: int) -> list[Json]:
    """What an operation changes in etcd."""
    key = keys.of(operation.key)
    if isinstance(operation, Create):
        return [put(key, operation.value, lease=lease if operation.ephemeral else 0)]
    if isinstance(operation, Set):
        return [put(key, operation.value, keep_lease=True)]
    return [delete(key)] if isinstance(operation, Delete) else []


def check_all(entries: Mapping[str, Entry], operations: Iterable[Operation]) -> None:
    """Raises Conflict at the first operation that fails, if they are applied one after the other."""
    changed: dict[str, Entry | None] = {}
    for operation in operations:
        key = operation.key
        found = changed[key] if key in changed else entries.get(key)
        check_operation(operation, found)
        if isinstance(operation, Create):
            changed[key] = Entry(key, operation.value, 0, 0, 0)
        elif isinstance(operation, Set):
            assert found is not None
            changed[key] = found._replace(version=found.version + 1)
        elif isinstance(operation, Delete):
            changed[key] = None


def size_of(operation: Operation) -> int:
    return len(operation.key) + (len(operation.value) if isinstance(operation, Create | Set) else 0)


def fits_one_transaction(operations: Sequence[Operation]) -> bool:
    """Whether these operations can be one transaction of etcd: few and small enough, and none of them depends on an
    earlier one. etcd compares everything first, and changes no key twice."""
    changed: set[str] = set()
    conditions = 0
    for operation in operations:
        if operation.key in changed:
            return False
        conditions += 1
        if not isinstance(operation, Check):
            changed.add(operation.key)
        elif ANY_VERSION not in (operation.version, operation.created):
            conditions += 1
    return conditions <= KEYS_MAX and sum(map(size_of, operations)) <= BYTES_MAX


class Plan(NamedTuple):
    """A large commit: what is applied at its commit point, and the steps after it."""

    head: list[Operation]
    steps: list[list[Operation]]


def plan_large_commit(entries: Mapping[str, Entry], operations: Sequence[Operation]) -> Plan:
    """Splits a commit. No step has a key twice, and operations on one key stay in order.

    What concerns ephemeral keys is applied at the commit point, while their sessions are known to be alive: a step may
    run later, when a key has disappeared with its session. The first operations are applied there too: a broker's
    registration is stored under two keys, which must have the same revision.
    """
    head: list[Operation] = []
    in_head: set[str] = set()
    rest: list[Operation] = []
    in_rest: set[str] = set()
    size = 0
    for operation in operations:
        key = operation.key
        found = entries.get(key)
        is_ephemeral = (isinstance(operation, Create) and operation.ephemeral) or (
            found is not None and found.session_id != 0
        )
        is_early = len(head) < KEYS_MAX // 2 and size + size_of(operation) <= BYTES_MAX
        if isinstance(operation, Check):
            if is_ephemeral:
                head.append(operation)
        elif key not in in_head and key not in in_rest and (is_ephemeral or is_early):
            head.append(operation)
            in_head.add(key)
            size += size_of(operation)
        else:
            assert not is_ephemeral, f"{key}: a large commit can change an ephemeral key once"
            rest.append(operation)
            in_rest.add(key)
    return Plan(head, _steps(rest))


def _steps(operations: Iterable[Operation]) -> list[list[Operation]]:
    steps: list[list[Operation]] = []
    keys: set[str] = set()
    size = 0
    for operation in operations:
        if not steps or len(keys) == KEYS_MAX or operation.key in keys or size + size_of(operation) > BYTES_MAX:
            steps.append([])
            keys, size = set(), 0
        steps[-1].append(operation)
        keys.add(operation.key)
        size += size_of(operation)
    return steps
