"""The rules for changes of ACLs: CreateAcls and DeleteAcls. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.acl_records import acl_key, write_acls
from ottla.metadata.controller.decisions import Decision, Put, Remove
from ottla.metadata.image import ClusterImage
from ottla.security.acls import AccessControlEntry, AclBinding, AclBindingFilter, ResourcePattern

MAX_PATTERNS = 100
"""The most resource patterns in one commit; each is a key."""
MAX_VALUE_BYTES = 1_000_000
"""The limit for the ACLs of one resource pattern: stores limit the size of a value."""

Additions = Mapping[ResourcePattern, Sequence[AccessControlEntry]]


class Deletion(NamedTuple):
    """What one commit deletes, for each of the filters."""

    deleted: list[list[AclBinding]]
    is_complete: bool
    """Whether no matching ACL is left."""


def add_acls(image: ClusterImage, additions: Additions) -> Decision[dict[ResourcePattern, KafkaError]]:
    """Adds ACLs; existing ones are kept. The reply has an error for each pattern with too many."""
    changes: list[Put] = []
    failed: dict[ResourcePattern, KafkaError] = {}
    for pattern, entries in additions.items():
        before = image.acls.get(pattern, ())
        after = tuple(dict.fromkeys((*before, *entries)))
        if after == before:
            continue
        value = write_acls(after)
        if len(value) > MAX_VALUE_BYTES:
            failed[pattern] = KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The {len(after)} ACLs of {pattern} take {len(value)} bytes (at most {MAX_VALUE_BYTES}). "
                "Use fewer, for example with User:* or a prefixed pattern.",
            )
        else:
            changes.append(Put(acl_key(pattern), value))
    return Decision(failed, tuple(changes))


def delete_acls(image: ClusterImage, filters: Sequence[AclBindingFilter]) -> Decision[Deletion]:
    """Deletes the ACLs that match one of the filters, of a limited number of patterns."""
    matching = [each.find(image.acls) for each in filters]
    patterns = list(dict.fromkeys(binding.pattern for found in matching for binding in found))
    now = set(patterns[:MAX_PATTERNS])
    doomed: dict[ResourcePattern, set[AccessControlEntry]] = {pattern: set() for pattern in now}
    deleted = [[binding for binding in found if binding.pattern in now] for found in matching]
    for found in deleted:
        for pattern, entry in found:
            doomed[pattern].add(entry)
    return Decision(
        Deletion(deleted, len(patterns) <= MAX_PATTERNS),
        tuple(_without(image, pattern, entries) for pattern, entries in doomed.items()),
    )


def _without(image: ClusterImage, pattern: ResourcePattern, entries: Iterable[AccessControlEntry]) -> Put | Remove:
    left = [entry for entry in image.acls[pattern] if entry not in entries]
    return Put(acl_key(pattern), write_acls(left)) if left else Remove(acl_key(pattern))
