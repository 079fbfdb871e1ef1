"""How commits become transactions of etcd, and what watchers get of them."""

from typing import Any

import pytest

from ottla.metadata.etcd.local_copy import LocalCopy, write_lock
from ottla.metadata.etcd.transactions import (
    BYTES_MAX,
    KEYS_MAX,
    Keys,
    check_all,
    comparisons,
    encode,
    fits_one_transaction,
    plan_large_commit,
    requests,
)
from ottla.metadata.store import Check, Conflict, Create, Delete, Entry, Operation, Set

KEYS = Keys("/p")
ETCD_OPERATIONS_MAX = 128


def entry(key: str, *, session_id: int = 0) -> Entry:
    return Entry(key, b"", 0, 1, 1, session_id)


def test_operations_that_depend_on_earlier_ones_need_more_than_one_transaction() -> None:
    """etcd compares everything before it changes anything."""
    assert fits_one_transaction([Check("/a", 1), Set("/a", b""), Create("/b", b"")])
    assert not fits_one_transaction([Set("/a", b""), Check("/a", 1)])
    assert not fits_one_transaction([Delete("/a"), Create("/a", b"")])


def test_one_transaction_stays_within_the_limits_of_etcd() -> None:
    checks: list[Operation] = [Check(f"/{number}", 0, 1) for number in range(KEYS_MAX // 2)]
    assert fits_one_transaction(checks)
    assert sum(len(comparisons(KEYS, each)) for each in checks) <= ETCD_OPERATIONS_MAX - 3
    assert not fits_one_transaction([*checks, Check("/x")])
    assert fits_one_transaction([Create(f"/{number}", b"") for number in range(KEYS_MAX)])
    assert not fits_one_transaction([Create(f"/{number}", b"") for number in range(KEYS_MAX + 1)])
    assert not fits_one_transaction([Create("/a", b"x" * BYTES_MAX)])


def test_a_large_commit_applies_ephemeral_keys_and_its_first_operations_at_the_commit_point() -> None:
    entries = {"/controller": entry("/controller", session_id=7), "/epoch": entry("/epoch")}
    many: list[Operation] = [Create(f"/t/{number}", b"") for number in range(1_000)]
    operations: list[Operation] = [Create("/known", b""), Check("/epoch"), *many]
    operations += [Create("/ids", b"", ephemeral=True), Check("/controller")]
    plan = plan_large_commit(entries, operations)
    assert plan.head[0] == Create("/known", b"")
    assert plan.head[-2:] == [Create("/ids", b"", ephemeral=True), Check("/controller")]
    assert Check("/epoch") not in plan.head, "it cannot change while the lock is held"
    assert [each for group in (plan.head, *plan.steps) for each in group if each in many] == many
    assert all(len(step) <= KEYS_MAX for step in plan.steps)


def test_no_step_changes_a_key_twice_and_their_order_stays() -> None:
    operations: list[Operation] = [Create("/a", b"1"), Set("/a", b"2"), Set("/b", b"x"), Set("/a", b"3")]
    plan = plan_large_commit({"/b": entry("/b")}, operations)
    groups = [plan.head, *plan.steps]
    for group in groups:
        assert len({each.key for each in group}) == len(group)
    assert [each for group in groups for each in group if each.key == "/a"] == [operations[n] for n in (0, 1, 3)]


def test_operations_are_checked_one_after_the_other() -> None:
    entries = {"/a": entry("/a")}
    check_all(entries, [Set("/a", b"", 0), Check("/a", 1), Delete("/a", 1), Create("/a", b""), Check("/a", 0)])
    wrongs: list[list[Operation]] = [
        [Create("/a", b"")],
        [Set("/a", b"", 0), Set("/a", b"", 0)],
        [Delete("/a"), Check("/a")],
        [Check("/a", 0, created=5)],
    ]
    for wrong in wrongs:
        with pytest.raises(Conflict):
            check_all(entries, wrong)


def test_a_change_keeps_the_lease_of_its_key() -> None:
    """A broker that is leaving rewrites its registration, which must still end with its session."""
    (put,) = requests(KEYS, Set("/ids/1", b""), lease=7)
    assert put["request_put"]["ignore_lease"] is True
    (created,) = requests(KEYS, Create("/ids/1", b"", ephemeral=True), lease=7)
    assert created["request_put"]["lease"] == "7"


# --- the copy -------------------------------------------------------------------------------------------


def event(key: str, revision: int, value: bytes = b"", *, removed: bool = False, lease: int = 0) -> dict[str, Any]:
    kv = {"key": encode(b"/p" + key.encode()), "mod_revision": str(revision), "value": encode(value), "version": "1"}
    if lease:
        kv["lease"] = str(lease)
    return {"kv": kv, "type": "DELETE"} if removed else {"kv": kv}


def copy() -> LocalCopy:
    made = LocalCopy(KEYS, "//sessions/7")
    made.load([entry("//sessions/7"), entry("/a")], 10)
    return made


def test_watchers_get_a_large_commit_as_one_step() -> None:
    made = copy()
    assert made.receive([event("/t/1", 11), event("//lock", 11, write_lock(is_committed=True, steps=2))]) == []
    assert made.receive([event("/t/2", 12), event("/ids/9", 12, removed=True)]) == []
    assert (made.delivered, made.received, "/t/1" in made.entries) == (10, 12, False)
    changes = made.receive([event("/t/3", 13), event("//lock", 13, removed=True), event("/u", 14)])
    assert [change.key for change in changes] == ["/t/1", "/t/2", "/ids/9", "/t/3", "/u"]
    assert (made.delivered, made.lock) == (14, None)


def test_a_lock_before_the_commit_point_holds_nothing_back() -> None:
    made = copy()
    lock = event("//lock", 11, write_lock(is_committed=False), lease=7)
    assert [change.key for change in made.receive([lock, event("/b", 12)])] == ["/b"]


def test_events_repeated_after_a_reconnection_are_ignored() -> None:
    made = copy()
    made.receive([event("/b", 11, b"1"), event("/b", 12, b"2")])
    assert made.receive([event("/b", 11, b"1"), event("/b", 12, b"2")]) == []
    assert made.entries["/b"].value == b"2"


def test_the_last_change_of_a_key_counts() -> None:
    made = copy()
    changes = made.receive([event("/b", 11, b"1"), event("/a", 12, removed=True), event("/b", 13, b"3")])
    assert [(change.key, change.entry and change.entry.value) for change in changes] == [("/a", None), ("/b", b"3")]


def test_a_session_whose_key_is_removed_has_ended() -> None:
    made = copy()
    assert made.is_session_alive
    made.receive([event("//sessions/8", 11, removed=True)])
    assert made.is_session_alive
    made.receive([event("//sessions/7", 12, removed=True)])
    assert not made.is_session_alive


def test_a_new_scan_yields_the_difference() -> None:
    made = copy()
    made.receive([event("/gone", 11), event("/t/1", 12), event("//lock", 12, write_lock(is_committed=True, steps=1))])
    assert made.is_holding
    changes = made.load([entry("//sessions/7"), entry("/a"), Entry("/t/1", b"", 0, 12, 12)], 20)
    assert [(change.key, change.entry is None) for change in changes] == [("/t/1", False), ("/gone", True)]
    assert (made.delivered, made.received, made.is_holding) == (20, 20, False)
