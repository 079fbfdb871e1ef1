"""Logs administrative changes: what changed and who requested it, without secrets."""

import logging
from collections.abc import Iterable

from ottla.errors import ErrorCode
from ottla.metadata.changes.config_changes import ResourceChange, ResourceResult
from ottla.metadata.changes.quota_changes import QuotaChange, QuotaResult
from ottla.metadata.changes.scram_changes import MECHANISMS, Deletion, Upsertion, UserResult
from ottla.net.log_limit import safe_to_log
from ottla.protocol.wire_values import ConfigOperation, ConfigResourceType

log = logging.getLogger("ottla.metadata")

_SYMBOLS = {ConfigOperation.SET: "=", ConfigOperation.APPEND: "+=", ConfigOperation.SUBTRACT: "-="}


def log_change(what: str, by: str) -> None:
    """`by` is the client that requested it, as in `User:alice at 10.0.0.7`; empty for a broker's own change."""
    log.info("%s%s", safe_to_log(what), f", by {by}" if by else "")


def log_configs(
    changes: Iterable[ResourceChange], results: Iterable[ResourceResult], by: str, *, incremental: bool
) -> None:
    changed = {(result.resource_type, result.name) for result in results if result.error == ErrorCode.NONE}
    for change in changes:
        if (change.resource_type, change.name) in changed:
            verb = "changed" if incremental else "replaced"
            log_change(f"settings of {_resource(change)} {verb}: {_settings(change) or 'none are left'}", by)


def _resource(change: ResourceChange) -> str:
    kind = ConfigResourceType(change.resource_type).name.lower()
    return f"{kind} {change.name}" if change.name else f"every {kind}"


def _settings(change: ResourceChange) -> str:
    # Settings of brokers may be secrets: only their names are logged. Those of topics never are.
    if change.resource_type != ConfigResourceType.TOPIC:
        return ", ".join(name for name, _, _ in change.changes)
    return ", ".join(
        f"{name} removed"
        if operation == ConfigOperation.DELETE
        else f"{name}{_SYMBOLS[ConfigOperation(operation)]}{value}"
        for name, value, operation in change.changes
    )


def log_quotas(changes: Iterable[QuotaChange], results: Iterable[QuotaResult], by: str) -> None:
    changed = {tuple(result.entity) for result in results if result.error == ErrorCode.NONE}
    for entity, values in changes:
        if tuple(entity) in changed:
            who = ", ".join(f"{kind} {name or '(default)'}" for kind, name in entity)
            what = ", ".join(f"{key} removed" if value is None else f"{key}={value:g}" for key, value in values)
            log_change(f"quotas of {who} changed: {what}", by)


def log_users(
    deletions: Iterable[Deletion], upsertions: Iterable[Upsertion], results: Iterable[UserResult], by: str
) -> None:
    changed = {result.user for result in results if result.error == ErrorCode.NONE}
    for user, number in deletions:
        if user in changed:
            log_change(f"user {user} can no longer log in with {MECHANISMS[number].name}", by)
    for each in upsertions:
        if each.user in changed:
            log_change(f"user {each.user} has a new password for {MECHANISMS[each.mechanism].name}", by)
