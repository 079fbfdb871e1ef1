"""Mutation tests: one rule of the authorizer is disabled at a time, and a test fails. Spec: R7.

tests/live/broker/test_acls.py proves that each handler checks its permissions: without a check, the permission would
make no difference.
"""

import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ottla.security import authorizer
from ottla.security.resources import Operation
from tests.unit.security import test_authorizer
from tests.unit.security.test_authorizer import acl


class Rule(NamedTuple):
    """A rule, its code, the code that replaces it, and the test that then fails."""

    name: str
    code: str
    without: str
    test: Callable[..., None]
    arguments: dict[str, Any] = {}  # noqa: RUF012


RULES = [
    Rule(
        "super users may do everything",
        "if principal in self.super_users:",
        "if False:",
        test_authorizer.test_a_super_user_may_do_what_is_denied,
    ),
    Rule(
        "a denial wins",
        "return Verdict(False, Reason.DENY, AclBinding(pattern, entry))",
        "continue",
        test_authorizer.test_a_deny_of_any_pattern_wins_over_every_allow,
        {"deny": acl("deny READ", "orders"), "allow": acl("allow READ", "*")},
    ),
    Rule(
        "the resource itself is looked up",
        "yield ResourcePattern(kind, name)\n",
        "pass\n",
        test_authorizer.test_a_literal_acl_allows_its_resource_only,
    ),
    Rule(
        "prefixes are looked up",
        "yield ResourcePattern(kind, name[:length], PatternType.PREFIXED)",
        "pass",
        test_authorizer.test_a_prefixed_acl_allows_what_starts_with_it,
    ),
    Rule(
        "the wildcard is looked up",
        "            yield ResourcePattern(kind, WILDCARD)\n",
        "            pass\n",
        test_authorizer.test_the_wildcard_allows_every_name,
    ),
    Rule(
        "everyone is a principal",
        "if entry.principal not in (who, WILDCARD_PRINCIPAL):",
        "if entry.principal != who:",
        test_authorizer.test_user_star_is_everyone,
    ),
    Rule(
        "a principal is compared",
        "if entry.principal not in (who, WILDCARD_PRINCIPAL):",
        "if False:",
        test_authorizer.test_a_literal_acl_allows_its_resource_only,
    ),
    Rule(
        "a host is compared",
        "return entry.host == WILDCARD or canonical_host(entry.host) == host",
        "return True",
        test_authorizer.test_an_acl_of_a_host_is_for_that_address_only,
    ),
    Rule(
        "an address has many spellings",
        "canonical_host(entry.host) == host",
        "entry.host == host",
        test_authorizer.test_an_address_has_many_spellings,
        {"written": "0:0:0:0:0:0:0:1"},
    ),
    Rule(
        "ALL is every operation",
        "if granted is operation or granted is Operation.ALL:",
        "if granted is operation:",
        test_authorizer.test_all_implies_every_operation,
        {"operation": Operation.WRITE},
    ),
    Rule(
        "READ implies DESCRIBE",
        "return granted in IMPLYING_DESCRIBE\n",
        "return False\n",
        test_authorizer.test_which_operations_imply_describe,
        {"operation": Operation.READ},
    ),
    Rule(
        "ALTER_CONFIGS implies DESCRIBE_CONFIGS",
        "granted in IMPLYING_DESCRIBE_CONFIGS",
        "False",
        test_authorizer.test_which_operations_imply_describe,
        {"operation": Operation.ALTER_CONFIGS},
    ),
    Rule(
        "a denial implies nothing",
        "if entry.permission is not PermissionType.ALLOW:",
        "if False:",
        test_authorizer.test_a_deny_implies_nothing,
    ),
    Rule(
        "a resource that has ACLs is not for everyone",
        "if has_acls:",
        "if False:",
        test_authorizer.test_everyone_may_use_a_resource_without_acls_if_so_configured,
    ),
    Rule(
        "a denial of all topics leaves none to write to",
        "if everything in denied:",
        "if False:",
        test_authorizer.test_a_deny_that_covers_every_allow_leaves_nothing,
    ),
    Rule(
        "a denial of the same name leaves nothing of it",
        "if pattern.pattern_type is PatternType.LITERAL and pattern in denied:",
        "if False:",
        test_authorizer.test_a_deny_that_covers_every_allow_leaves_nothing,
    ),
    Rule(
        "a denial of a prefix leaves nothing of what starts with it",
        "return any(ResourcePattern(pattern.type, prefix, PatternType.PREFIXED) in denied for prefix in prefixes)",
        "return False",
        test_authorizer.test_a_deny_that_covers_every_allow_leaves_nothing,
    ),
    Rule(
        "only the operation itself counts for any topic",
        "if entry.operation not in (operation, Operation.ALL) or not _is_from(entry, who, host):",
        "if not _is_from(entry, who, host):",
        test_authorizer.test_write_on_one_topic_is_write_on_any,
    ),
    Rule(
        "the cache is bounded",
        "if self._cached > CACHED_MAX:",
        "if False:",
        test_authorizer.test_decisions_are_remembered_up_to_a_bound,
    ),
    Rule(
        "long names are not cached",
        "if len(name) <= CACHED_NAME_MAX:",
        "if True:",
        test_authorizer.test_names_that_no_resource_can_have_are_not_remembered,
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_without_the_rule_a_test_fails(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(authorizer)
    assert source.count(rule.code) == 1, f"the code of the rule has changed: {rule.code}"
    arguments = dict(rule.arguments)
    if "monkeypatch" in inspect.signature(rule.test).parameters:
        arguments["monkeypatch"] = monkeypatch
    rule.test(**arguments)
    broken = types.ModuleType("broken_authorizer")
    exec(source.replace(rule.code, rule.without), broken.__dict__)
    monkeypatch.setattr(test_authorizer, "Authorizer", broken.Authorizer)
    if "module" in vars(test_authorizer):
        monkeypatch.setattr(test_authorizer, "module", broken)
    with pytest.raises(AssertionError):
        rule.test(**arguments)
