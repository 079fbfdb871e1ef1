"""ACLs in the metadata: how they are stored, added and deleted."""

from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.metadata.acl_records import acl_key, write_acls
from ottla.metadata.changes import acl_changes
from ottla.metadata.changes.acl_changes import add_acls, delete_acls
from ottla.metadata.controller.decisions import Decision, Put, Remove
from ottla.metadata.image import NO_IMAGE, ClusterImage
from ottla.metadata.records import RecordError
from ottla.metadata.store import Change, Entry
from ottla.security.acls import AccessControlEntry, AclBindingFilter, ResourcePattern
from ottla.security.resources import Operation, PatternType, PermissionType, ResourceType

ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
READ = AccessControlEntry("User:alice", "*", Operation.READ, PermissionType.ALLOW)
WRITE = AccessControlEntry("User:alice", "10.0.0.1", Operation.WRITE, PermissionType.DENY)


def after(image: ClusterImage, decision: Decision[Any]) -> ClusterImage:
    changes = [
        Change(each.key, Entry(each.key, each.value, 0, 1, 1) if isinstance(each, Put) else None, image.version + 1)
        for each in decision.changes
    ]
    return image.apply(changes, image.version + 1)


@pytest.mark.parametrize("kind", [kind for kind in ResourceType if kind > ResourceType.ANY])
@pytest.mark.parametrize("pattern_type", [PatternType.LITERAL, PatternType.PREFIXED])
@pytest.mark.parametrize("name", ["orders", "*", "a/b/c/d", "%2F é\n", ".."])
def test_stored_acls_are_read_again(kind: ResourceType, pattern_type: PatternType, name: str) -> None:
    pattern = ResourcePattern(kind, name, pattern_type)
    entries = [
        AccessControlEntry("User:CN=a,O=é", "*", operation, permission)
        for operation in Operation
        if operation > Operation.ANY
        for permission in (PermissionType.ALLOW, PermissionType.DENY)
    ]
    image = after(NO_IMAGE, add_acls(NO_IMAGE, {pattern: entries}))
    assert image.acls == {pattern: tuple(entries)}


def test_the_layout_is_that_of_kafka_in_zookeeper() -> None:
    assert acl_key(ORDERS) == "/kafka-acl/Topic/orders"
    prefixed = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "t", PatternType.PREFIXED)
    assert acl_key(prefixed) == "/kafka-acl-extended/prefixed/TransactionalId/t"
    assert write_acls([WRITE]) == (
        b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Deny","operation":"Write","host":"10.0.0.1"}]}'
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("/kafka-acl/Nonsense/a", write_acls([READ])),
        ("/kafka-acl/Topic/a", b"{}"),
        ("/kafka-acl/Topic/a", b'{"acls":[{"principal":"User:a"}]}'),
        ("/kafka-acl/Topic/a", write_acls([READ]).replace(b"Read", b"Fly")),
    ],
)
def test_an_entry_that_cannot_be_read_is_an_error(key: str, value: bytes) -> None:
    """A broker must not start and ignore a denial."""
    with pytest.raises(RecordError, match=key):
        NO_IMAGE.apply([Change(key, Entry(key, value, 0, 1, 1), 1)], 1)


def test_adding_what_exists_changes_nothing() -> None:
    image = after(NO_IMAGE, add_acls(NO_IMAGE, {ORDERS: [READ, READ]}))
    assert image.acls == {ORDERS: (READ,)}
    assert add_acls(image, {ORDERS: [READ]}).changes == ()
    assert after(image, add_acls(image, {ORDERS: [WRITE]})).acls == {ORDERS: (READ, WRITE)}


def test_a_pattern_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "MAX_VALUE_BYTES", 150)
    decision = add_acls(NO_IMAGE, {ORDERS: [READ, WRITE], ResourcePattern(ResourceType.GROUP, "g"): [READ]})
    assert [error.code for error in decision.reply.values()] == [ErrorCode.INVALID_REQUEST]
    assert [change.key for change in decision.changes] == ["/kafka-acl/Group/g"]


def test_the_last_acl_takes_the_key_with_it() -> None:
    image = after(NO_IMAGE, add_acls(NO_IMAGE, {ORDERS: [READ, WRITE]}))
    decision = delete_acls(image, [AclBindingFilter(operation=Operation.READ)])
    assert after(image, decision).acls == {ORDERS: (WRITE,)}
    decision = delete_acls(image, [AclBindingFilter(), AclBindingFilter(operation=Operation.READ)])
    assert [len(found) for found in decision.reply.deleted] == [2, 1]
    assert decision.changes == (Remove("/kafka-acl/Topic/orders"),)
    assert after(image, decision).acls == {}


def test_one_commit_deletes_a_limited_number_of_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "MAX_PATTERNS", 3)
    patterns = [ResourcePattern(ResourceType.TOPIC, f"t{number}") for number in range(7)]
    image = after(NO_IMAGE, add_acls(NO_IMAGE, {pattern: [READ] for pattern in patterns}))
    sizes = []
    is_complete = False
    while not is_complete:
        decision = delete_acls(image, [AclBindingFilter()])
        sizes.append(len(decision.changes))
        is_complete = decision.reply.is_complete
        image = after(image, decision)
    assert sizes == [3, 3, 1]
    assert not image.acls
