"""Decisions by ACLs: which pattern matches, who decides when several do, what implies what."""

import itertools
import random

import pytest

from ottla.security import authorizer as module
from ottla.security.acls import AccessControlEntry, AclBinding, ResourcePattern
from ottla.security.authorizer import Authorizer, Reason
from ottla.security.principal import Principal
from ottla.security.resources import CLUSTER, Operation, PatternType, PermissionType, Resource, ResourceType

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.7"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def acl(
    text: str,
    name: str,
    *,
    kind: ResourceType = TOPIC,
    prefixed: bool = False,
    host: str = "*",
    who: str = "User:alice",
) -> AclBinding:
    """`acl("allow READ", "orders")`."""
    permission, operation = text.split()
    pattern = ResourcePattern(kind, name, PatternType.PREFIXED if prefixed else PatternType.LITERAL)
    return AclBinding(pattern, AccessControlEntry(who, host, Operation[operation], PermissionType[permission.upper()]))


def acls_of(*bindings: AclBinding) -> dict[ResourcePattern, tuple[AccessControlEntry, ...]]:
    acls: dict[ResourcePattern, tuple[AccessControlEntry, ...]] = {}
    for pattern, entry in bindings:
        acls[pattern] = (*acls.get(pattern, ()), entry)
    return acls


def allowed(*bindings: AclBinding, operation: Operation = READ, name: str = "orders", host: str = HOST) -> bool:
    return Authorizer(acls_of(*bindings)).allows(ALICE, host, operation, Resource(TOPIC, name))


def test_without_an_acl_nothing_is_allowed() -> None:
    assert not allowed()


def test_a_literal_acl_allows_its_resource_only() -> None:
    rule = acl("allow READ", "orders")
    assert allowed(rule)
    assert not allowed(rule, name="orders-eu")
    assert not allowed(rule, name="order")
    assert not allowed(rule, operation=WRITE)
    assert not Authorizer(acls_of(rule)).allows(BOB, HOST, READ, Resource(TOPIC, "orders"))
    assert not Authorizer(acls_of(rule)).allows(ALICE, HOST, READ, Resource(GROUP, "orders"))


def test_a_prefixed_acl_allows_what_starts_with_it() -> None:
    rule = acl("allow READ", "orders", prefixed=True)
    assert allowed(rule)
    assert allowed(rule, name="orders-eu")
    assert not allowed(rule, name="order")


def test_the_wildcard_allows_every_name() -> None:
    assert allowed(acl("allow READ", "*"))
    assert allowed(acl("allow READ", "*"), name="*")
    # A prefix is no pattern: the star has no meaning in it.
    assert not allowed(acl("allow READ", "*", prefixed=True))


@pytest.mark.parametrize(
    "deny", [acl("deny READ", "orders"), acl("deny READ", "ord", prefixed=True), acl("deny READ", "*")], ids=str
)
@pytest.mark.parametrize(
    "allow", [acl("allow READ", "orders"), acl("allow ALL", "ord", prefixed=True), acl("allow READ", "*")], ids=str
)
def test_a_deny_of_any_pattern_wins_over_every_allow(deny: AclBinding, allow: AclBinding) -> None:
    assert allowed(allow)
    assert not allowed(allow, deny)
    assert not allowed(deny, allow)


def test_user_star_is_everyone() -> None:
    assert allowed(acl("allow READ", "orders", who="User:*"))
    assert not allowed(acl("allow READ", "orders"), acl("deny READ", "orders", who="User:*"))


def test_a_wildcard_user_is_no_wildcard_of_another_principal_type() -> None:
    robot = Principal("Robot", "r2")
    assert Authorizer(acls_of(acl("allow READ", "orders", who="User:*"))).allows(
        robot, HOST, READ, Resource(TOPIC, "orders")
    )
    assert not Authorizer(acls_of(acl("allow READ", "orders", who="Robot:*"))).allows(
        robot, HOST, READ, Resource(TOPIC, "orders")
    )


def test_an_acl_of_a_host_is_for_that_address_only() -> None:
    rule = acl("allow READ", "orders", host=HOST)
    assert allowed(rule)
    assert not allowed(rule, host="10.0.0.8")
    assert not allowed(acl("allow READ", "orders"), acl("deny READ", "orders", host=HOST))


@pytest.mark.parametrize("written", ["::1", "0:0:0:0:0:0:0:1"])
def test_an_address_has_many_spellings(written: str) -> None:
    assert allowed(acl("allow READ", "orders", host=written), host="::1")
    assert allowed(acl("allow READ", "orders", host="10.0.0.7"), host="::ffff:10.0.0.7")


@pytest.mark.parametrize("operation", list(Operation)[3:])
def test_which_operations_imply_describe(operation: Operation) -> None:
    implying = {READ, WRITE, Operation.DELETE, Operation.ALTER, DESCRIBE}
    assert allowed(acl(f"allow {operation.name}", "orders"), operation=DESCRIBE) is (operation in implying)
    implying = {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    assert allowed(acl(f"allow {operation.name}", "orders"), operation=Operation.DESCRIBE_CONFIGS) is (
        operation in implying
    )


@pytest.mark.parametrize("operation", list(Operation)[3:])
def test_all_implies_every_operation(operation: Operation) -> None:
    assert allowed(acl("allow ALL", "orders"), operation=operation)
    assert not allowed(acl("allow ALL", "orders"), acl("deny ALL", "orders"), operation=operation)


def test_a_deny_implies_nothing() -> None:
    describe = acl("allow DESCRIBE", "orders")
    assert allowed(describe, acl("deny READ", "orders"), operation=DESCRIBE)
    assert not allowed(describe, acl("deny DESCRIBE", "orders"), operation=DESCRIBE)


def test_a_super_user_may_do_what_is_denied() -> None:
    rules = acls_of(acl("deny ALL", "*"))
    assert Authorizer(rules, super_users=[ALICE]).allows(ALICE, HOST, READ, Resource(TOPIC, "orders"))
    assert not Authorizer(rules, super_users=[BOB]).allows(ALICE, HOST, READ, Resource(TOPIC, "orders"))


def test_everyone_may_use_a_resource_without_acls_if_so_configured() -> None:
    rules = acls_of(acl("allow READ", "orders", who="User:bob"), acl("allow READ", "pay", prefixed=True))
    authorizer = Authorizer(rules, allow_everyone_if_no_acl_found=True)
    assert authorizer.allows(ALICE, HOST, WRITE, Resource(TOPIC, "events"))
    assert authorizer.allows(ALICE, HOST, Operation.ALTER, CLUSTER)
    # It has ACLs, although none that matches.
    assert not authorizer.allows(ALICE, HOST, WRITE, Resource(TOPIC, "orders"))
    assert not authorizer.allows(ALICE, HOST, WRITE, Resource(TOPIC, "payments"))
    wildcard = Authorizer(acls_of(acl("allow READ", "*")), allow_everyone_if_no_acl_found=True)
    assert not wildcard.allows(ALICE, HOST, WRITE, Resource(TOPIC, "events"))


def test_a_verdict_names_what_decided() -> None:
    allow, deny = acl("allow READ", "ord", prefixed=True), acl("deny READ", "*", host="10.9.9.9")
    authorizer = Authorizer(acls_of(allow, deny), super_users=[BOB])
    orders = Resource(TOPIC, "orders")
    assert authorizer.decide(ALICE, HOST, READ, orders) == (True, Reason.ALLOW, allow)
    assert authorizer.decide(ALICE, "10.9.9.9", READ, orders) == (False, Reason.DENY, deny)
    assert authorizer.decide(ALICE, HOST, WRITE, orders) == (False, Reason.NO_MATCH, None)
    assert authorizer.decide(ALICE, HOST, WRITE, Resource(GROUP, "orders")) == (False, Reason.NO_ACLS, None)
    assert authorizer.decide(BOB, HOST, WRITE, orders) == (True, Reason.SUPER_USER, None)


# -- any resource of a type (KIP-679) --


def allowed_any(*bindings: AclBinding, everyone: bool = False) -> bool:
    authorizer = Authorizer(acls_of(*bindings), allow_everyone_if_no_acl_found=everyone)
    return authorizer.allows_any(ALICE, HOST, WRITE, TOPIC)


def test_write_on_one_topic_is_write_on_any() -> None:
    assert not allowed_any()
    assert allowed_any(acl("allow WRITE", "orders"))
    assert allowed_any(acl("allow WRITE", "ord", prefixed=True))
    assert allowed_any(acl("allow ALL", "*"))
    assert not allowed_any(acl("allow READ", "orders"))
    assert not allowed_any(acl("allow WRITE", "orders", who="User:bob"))
    assert not allowed_any(acl("allow WRITE", "orders", host="10.0.0.8"))
    assert allowed_any(everyone=True)
    assert Authorizer(acls_of(acl("deny ALL", "*")), super_users=[ALICE]).allows_any(ALICE, HOST, WRITE, TOPIC)


def test_a_deny_that_covers_every_allow_leaves_nothing() -> None:
    literal, prefixed = acl("allow WRITE", "orders"), acl("allow WRITE", "orders", prefixed=True)
    assert not allowed_any(literal, acl("deny WRITE", "orders"))
    assert not allowed_any(literal, prefixed, acl("deny WRITE", "ord", prefixed=True))
    assert not allowed_any(literal, prefixed, acl("deny ALL", "*"))
    # Of these something is left.
    assert allowed_any(prefixed, acl("deny WRITE", "orders"))
    assert allowed_any(prefixed, acl("deny WRITE", "orders-eu", prefixed=True))
    assert allowed_any(literal, acl("allow WRITE", "pay"), acl("deny WRITE", "orders"))


# -- the cache --


def test_decisions_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_MAX", 10)
    authorizer = Authorizer(acls_of(acl("allow READ", "t", prefixed=True)))
    for number in range(100):
        assert authorizer.allows(ALICE, HOST, READ, Resource(TOPIC, f"t{number}"))
        assert not authorizer.allows(Principal("User", str(number)), HOST, READ, Resource(TOPIC, "t"))
        assert authorizer.cached_count <= 12


def test_names_that_no_resource_can_have_are_not_remembered() -> None:
    authorizer = Authorizer(acls_of(acl("allow READ", "*")))
    decisions = authorizer.decisions(ALICE, HOST, READ, TOPIC)
    assert decisions["x" * 10_000] is True
    assert decisions["orders"] is True
    assert list(decisions) == ["orders"]


def test_new_acls_take_effect_at_once() -> None:
    authorizer = Authorizer(super_users=[BOB], allow_everyone_if_no_acl_found=True)
    orders = Resource(TOPIC, "orders")
    assert authorizer.allows(ALICE, HOST, READ, orders)
    authorizer = authorizer.with_acls(acls_of(acl("deny READ", "orders")))
    assert not authorizer.allows(ALICE, HOST, READ, orders)
    assert authorizer.allows(BOB, HOST, READ, orders)


# -- against the definition --


def by_definition(bindings: list[AclBinding], operation: Operation, name: str) -> bool:
    """The same decision without an index: looks at every ACL."""
    is_allowed = False
    for (_, pattern, pattern_type), (who, host, granted, permission) in bindings:
        fits = name.startswith(pattern) if pattern_type is PatternType.PREFIXED else pattern in (name, "*")
        if not fits or who not in ("User:alice", "User:*") or host not in ("*", HOST):
            continue
        implied = operation is DESCRIBE and permission is PermissionType.ALLOW and granted in (READ, WRITE)
        if granted in (operation, Operation.ALL) or implied:
            if permission is PermissionType.DENY:
                return False
            is_allowed = True
    return is_allowed


@pytest.mark.parametrize("seed", range(50))
def test_the_index_finds_what_a_search_through_all_acls_finds(seed: int) -> None:
    rng = random.Random(seed)
    names = ["".join(letters) for size in range(1, 4) for letters in itertools.product("ab*", repeat=size)]
    bindings = [
        acl(
            f"{rng.choice(['allow', 'allow', 'deny'])} {rng.choice(['READ', 'WRITE', 'DESCRIBE', 'ALL'])}",
            rng.choice(names),
            prefixed=rng.random() < 0.4,
            host=rng.choice(["*", HOST, "10.0.0.8"]),
            who=rng.choice(["User:alice", "User:alice", "User:bob", "User:*"]),
        )
        for _ in range(rng.randrange(30))
    ]
    authorizer = Authorizer(acls_of(*bindings))
    for name, operation in itertools.product(names, (READ, WRITE, DESCRIBE)):
        expected = by_definition(bindings, operation, name)
        assert authorizer.allows(ALICE, HOST, operation, Resource(TOPIC, name)) is expected, (name, operation)
