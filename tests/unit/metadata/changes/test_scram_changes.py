"""SCRAM credentials of users: added, replaced, deleted and found again (KIP-554)."""

import time

import pytest

from ottla.errors import ErrorCode
from ottla.metadata import records
from ottla.metadata.changes.scram_changes import (
    Deletion,
    Upsertion,
    UserResult,
    alter_user_scram_credentials,
    credentials_of,
    find_credential,
    user_key,
    users_with_credentials,
)
from ottla.metadata.controller.decisions import Put
from ottla.metadata.image import NO_IMAGE, ClusterImage
from ottla.metadata.store import Change, Entry
from ottla.security.sasl.scram_math import SCRAM_SHA_256, SCRAM_SHA_512, salted_password
from tests.support.wire.scram_credentials import new_credential


class World:
    def __init__(self) -> None:
        self.image: ClusterImage = NO_IMAGE
        self.version = 0

    def alter(self, *, delete: list[Deletion] | None = None, upsert: list[Upsertion] | None = None) -> list[UserResult]:
        decision = alter_user_scram_credentials(self.image, delete or [], upsert or [])
        self.version += 1
        changes = [
            Change(change.key, _entry(change, self.version) if isinstance(change, Put) else None, self.version)
            for change in decision.changes
        ]
        self.image = self.image.apply(changes, self.version)
        return decision.reply


def _entry(change: Put, revision: int) -> Entry:
    return Entry(change.key, change.value, 0, revision, revision, 0)


def upsert(user: str, mechanism: int = 2, iterations: int = 4096, password: str = "secret") -> Upsertion:
    chosen = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}.get(mechanism, SCRAM_SHA_512)
    return Upsertion(user, mechanism, iterations, b"salt", salted_password(chosen, password, b"salt", iterations))


def test_a_new_user_is_found_with_its_credential() -> None:
    world = World()
    assert world.alter(upsert=[upsert("alice"), upsert("alice", 1, 8192)]) == [UserResult("alice")]
    assert find_credential(world.image, "alice", "SCRAM-SHA-512") == new_credential(
        SCRAM_SHA_512, "secret", b"salt", 4096
    )
    assert credentials_of(world.image, "alice") == {SCRAM_SHA_256: 8192, SCRAM_SHA_512: 4096}
    assert [user for user, _ in users_with_credentials(world.image)] == ["alice"]
    assert find_credential(world.image, "bob", "SCRAM-SHA-512") is None
    assert find_credential(world.image, "", "SCRAM-SHA-512") is None


def test_names_are_stored_as_kafka_stores_them() -> None:
    assert user_key("a/b c") == "/config/users/a%2Fb%20c"
    world = World()
    world.alter(upsert=[upsert("a/b c")])
    assert [user for user, _ in users_with_credentials(world.image)] == ["a/b c"]


def test_a_deleted_user_is_gone() -> None:
    world = World()
    world.alter(upsert=[upsert("alice"), upsert("alice", 1)])
    assert world.alter(delete=[Deletion("alice", 1)]) == [UserResult("alice")]
    assert credentials_of(world.image, "alice") == {SCRAM_SHA_512: 4096}
    assert world.alter(delete=[Deletion("alice", 2)]) == [UserResult("alice")]
    assert not world.image.entity_configs


def test_quotas_of_a_user_stay_when_its_credentials_go() -> None:
    world = World()
    world.alter(upsert=[upsert("alice")])
    config = {**world.image.entity_configs["users/alice"], "producer_byte_rate": "1024"}
    entry = _entry(Put(user_key("alice"), records.write_config(config)), 9)
    world.image = world.image.apply([Change(user_key("alice"), entry, 9)], 9)
    world.alter(delete=[Deletion("alice", 2)])
    assert world.image.entity_configs == {"users/alice": {"producer_byte_rate": "1024"}}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (upsert("alice", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert("alice", iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert("alice")._replace(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert("alice")._replace(salted_password=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert("alice", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_credentials_outside_the_limits_are_rejected(change: Upsertion, error: ErrorCode) -> None:
    world = World()
    assert [result.error for result in world.alter(upsert=[change])] == [error]
    assert not world.image.entity_configs


def test_a_credential_can_be_altered_once_per_request() -> None:
    world = World()
    results = world.alter(upsert=[upsert("alice"), upsert("alice"), upsert("bob")])
    assert [result.error for result in results] == [ErrorCode.DUPLICATE_RESOURCE, ErrorCode.NONE]


def test_a_credential_that_does_not_exist_cannot_be_deleted() -> None:
    assert World().alter(delete=[Deletion("alice", 1)])[0].error == ErrorCode.RESOURCE_NOT_FOUND


def test_a_request_about_many_users_takes_linear_time() -> None:
    """Every client may send it if there are no ACLs, and the broker has one thread."""
    begun = time.process_time()
    results = World().alter(delete=[Deletion(f"user-{number}", 2) for number in range(30_000)])
    assert {result.error for result in results} == {ErrorCode.RESOURCE_NOT_FOUND}
    assert time.process_time() - begun < 3
