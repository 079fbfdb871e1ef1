"""Users with SCRAM: AlterUserScramCredentials and DescribeUserScramCredentials (KIP-554). Pure.

Credentials are stored with the user's other settings, in Kafka's text form.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.controller.decisions import Decision, Put, Remove
from ottla.metadata.image import ClusterImage
from ottla.security.quota_entities import QuotaEntity, entity_at, quota_path
from ottla.security.sasl.scram_math import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramError,
    ScramMechanism,
)

MECHANISMS = {mechanism.number: mechanism for mechanism in SCRAM_MECHANISMS.values()}
"""By their numbers in requests."""


class Deletion(NamedTuple):
    user: str
    mechanism: int


class Upsertion(NamedTuple):
    """A new credential, or one that replaces the old one. The client derives the salted password."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


class UserResult(NamedTuple):
    user: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def find_credential(image: ClusterImage, user: str, mechanism: str) -> ScramCredential | None:
    """None if the user does not exist, or cannot log in with this mechanism."""
    if not user:
        return None
    text = image.entity_configs.get(_path(user), {}).get(mechanism)
    try:
        return None if text is None else ScramCredential.from_text(text)
    except ScramError:
        return None


def users_with_credentials(image: ClusterImage) -> Iterator[tuple[str, dict[ScramMechanism, int]]]:
    """Every user that has credentials, with the iterations for each mechanism."""
    for path in image.entity_configs:
        entity = entity_at(path)
        if entity is not None and entity.user and entity.client_id is None:
            found = credentials_of(image, entity.user)
            if found:
                yield entity.user, found


def iterations_in_use(image: ClusterImage, mechanism: str) -> tuple[int, ...]:
    """The iterations of every user of a mechanism; computed once for each image."""
    found: tuple[int, ...] | None = image.memo.get(("scram_iterations", mechanism))
    if found is None:
        credentials = (find_credential(image, user, mechanism) for user, _ in users_with_credentials(image))
        found = tuple(each.iterations for each in credentials if each is not None)
        image.memo["scram_iterations", mechanism] = found
    return found


def credentials_of(image: ClusterImage, user: str) -> dict[ScramMechanism, int]:
    """The iterations for each mechanism; empty if the user has no credentials."""
    found = {}
    for mechanism in SCRAM_MECHANISMS.values():
        credential = find_credential(image, user, mechanism.name)
        if credential is not None:
            found[mechanism] = credential.iterations
    return found


def alter_user_scram_credentials(
    image: ClusterImage, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> Decision[list[UserResult]]:
    """Changes each user on its own: an error for one user does not affect the others."""
    results: list[UserResult] = []
    changes: list[Put | Remove] = []
    wanted: dict[str, tuple[list[Deletion], list[Upsertion]]] = {}
    for deletion in deletions:
        wanted.setdefault(deletion.user, ([], []))[0].append(deletion)
    for upsertion in upsertions:
        wanted.setdefault(upsertion.user, ([], []))[1].append(upsertion)
    for user, (deleted, upserted) in wanted.items():
        try:
            mechanisms = [*(each.mechanism for each in deleted), *(each.mechanism for each in upserted)]
            if len(set(mechanisms)) < len(mechanisms):
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in a request")
            changes.append(_altered(image, user, deleted, upserted))
            results.append(UserResult(user))
        except KafkaError as error:
            results.append(UserResult(user, error.code, error.detail))
    return Decision(results, changes)


def config_with(
    config: Mapping[str, str], upsertions: Sequence[Upsertion], deletions: Sequence[Deletion] = ()
) -> dict[str, str]:
    """A user's settings with other credentials. Raises KafkaError."""
    changed = dict(config)
    for each in deletions:
        mechanism = _mechanism(each.mechanism)
        if mechanism.name not in changed:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        del changed[mechanism.name]
    for new in upsertions:
        mechanism = _mechanism(new.mechanism)
        for is_wrong, problem in (
            (not new.salt, "the salt is empty"),
            (not new.salted_password, "the salted password is empty"),
            (new.iterations < MIN_ITERATIONS, "Too few iterations"),
            (new.iterations > MAX_ITERATIONS, "Too many iterations"),
        ):
            if is_wrong:
                limits = f"({new.iterations}; from {MIN_ITERATIONS} to {MAX_ITERATIONS})"
                raise KafkaError(
                    ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{problem} {limits}" if "iterations" in problem else problem
                )
        changed[mechanism.name] = ScramCredential.from_salted_password(
            mechanism, new.salted_password, new.salt, new.iterations
        ).to_text()
    return changed


def user_key(user: str) -> str:
    """Where a user's settings are stored."""
    return records.entity_config_key(_path(user))


def _altered(
    image: ClusterImage, user: str, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> Put | Remove:
    if not user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    config = config_with(image.entity_configs.get(_path(user), {}), upsertions, deletions)
    return Put(user_key(user), records.write_config(config)) if config else Remove(user_key(user))


def _mechanism(number: int) -> ScramMechanism:
    mechanism = MECHANISMS.get(number)
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"Unknown SCRAM mechanism {number}")
    return mechanism


def _path(user: str) -> str:
    return quota_path(QuotaEntity(user=user))
