"""The controller's rules for client quotas; tests/compat/test_same_quotas.py compares them with Apache Kafka."""

import json
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.changes.quota_changes import (
    Component,
    MatchType,
    QuotaChange,
    alter_client_quotas,
    client_quotas,
    describe_client_quotas,
)
from ottla.metadata.controller.decisions import Put, Remove
from ottla.metadata.image import NO_IMAGE, ClusterImage
from ottla.metadata.store import Change, Entry
from ottla.security.quota_entities import QuotaEntity, entity_at, quota_path

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
ALICE = [("user", "alice")]


class Cluster:
    """An image and what is committed to it."""

    def __init__(self) -> None:
        self.image: ClusterImage = NO_IMAGE

    def put(self, key: str, value: bytes | None) -> None:
        entry = None if value is None else Entry(key, value, 0, 1, 1)
        self.image = self.image.apply([Change(key, entry, self.image.version + 1)], self.image.version + 1)

    def alter(self, entity: Any, *changes: tuple[str, float | None], validate_only: bool = False) -> str:
        """The error, or an empty text."""
        decision = alter_client_quotas(self.image, [QuotaChange(entity, changes)], validate_only=validate_only)
        for change in decision.changes:
            self.put(change.key, change.value if isinstance(change, Put) else None)
        (result,) = decision.reply
        assert (result.error == ErrorCode.NONE) == (result.message is None)
        return result.message or ""

    def describe(self, *components: Component, strict: bool = False) -> set[str]:
        """The paths of the entities that match."""
        return {
            quota_path(entity)
            for entity in describe_client_quotas(client_quotas(self.image), components, strict=strict)
        }


def test_a_quota_is_stored_under_kafkas_key_and_read_back_from_the_image() -> None:
    cluster = Cluster()
    assert not cluster.alter([("user", "alice"), ("client-id", None)], (PRODUCER, 1024.0), (CONSUMER, 2.0**40))
    assert client_quotas(cluster.image) == {
        QuotaEntity(user="alice", client_id=""): {PRODUCER: 1024.0, CONSUMER: 2.0**40}
    }
    assert list(cluster.image.entity_configs) == ["users/alice/clients/<default>"]


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (QuotaEntity(user="a/b c"), "users/a%2Fb%20c"),
        (QuotaEntity(user="<default>"), "users/%3Cdefault%3E"),
        (QuotaEntity(user=""), "users/<default>"),
        (QuotaEntity(user="a", client_id="ä"), "users/a/clients/%C3%A4"),
        (QuotaEntity(client_id=""), "clients/<default>"),
        (QuotaEntity(ip="::1"), "ips/%3A%3A1"),
    ],
)
def test_every_name_has_a_path_of_its_own(entity: QuotaEntity, path: str) -> None:
    assert quota_path(entity) == path
    assert entity_at(path) == entity


def test_removing_the_last_quota_removes_the_entity() -> None:
    cluster = Cluster()
    cluster.alter(ALICE, (PRODUCER, 10.0), (CONSUMER, 20.0))
    assert not cluster.alter(ALICE, (PRODUCER, None))
    assert client_quotas(cluster.image) == {QuotaEntity(user="alice"): {CONSUMER: 20.0}}
    assert not cluster.alter(ALICE, (CONSUMER, None))
    assert not cluster.image.entity_configs


def test_a_users_credentials_stay_when_the_quotas_beside_them_change() -> None:
    cluster = Cluster()
    credentials = {"SCRAM-SHA-512": "salt=…"}
    cluster.put("/config/users/alice", records.write_config(credentials))
    assert not client_quotas(cluster.image)
    cluster.alter(ALICE, (PRODUCER, 10.0))
    assert cluster.image.entity_configs["users/alice"] == {**credentials, PRODUCER: "10.0"}
    # Nobody can remove or set them as if they were a quota.
    assert cluster.alter(ALICE, ("SCRAM-SHA-512", 1.0)) == "Invalid configuration key SCRAM-SHA-512"
    cluster.alter(ALICE, ("SCRAM-SHA-512", None), (PRODUCER, None))
    assert cluster.image.entity_configs["users/alice"] == credentials


@pytest.mark.parametrize(
    ("entity", "name", "value", "error"),
    [
        ([], PRODUCER, 1.0, "Invalid empty client quota entity"),
        ([("user", "")], PRODUCER, 1.0, "Empty user not supported"),
        ([("group", "g")], PRODUCER, 1.0, "Unhandled client quota entity type: group"),
        ([("user", "a"), ("ip", "1.2.3.4")], PRODUCER, 1.0, "Invalid quota entity combination, IP entity should not"),
        ([("ip", "no.address")], "connection_creation_rate", 1.0, "no.address is not a valid IP"),
        ([("ip", "1.2.3.4")], PRODUCER, 1.0, "Invalid configuration key producer_byte_rate"),
        (ALICE, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (ALICE, PRODUCER, 0.0, "Quota producer_byte_rate must be greater than 0"),
        (ALICE, PRODUCER, -1.0, "Quota producer_byte_rate must be greater than 0"),
        (ALICE, PRODUCER, float("nan"), "Quota producer_byte_rate must be greater than 0"),
        (ALICE, "request_percentage", float("nan"), "Quota request_percentage must be greater than 0"),
        (ALICE, "request_percentage", float("inf"), "Quota request_percentage must be finite"),
        (ALICE, PRODUCER, 1.5, "producer_byte_rate cannot be a fractional value."),
        (ALICE, PRODUCER, 1e30, "Proposed value for producer_byte_rate is too large for a LONG."),
        ([("ip", None)], "connection_creation_rate", 1e12, "Proposed value for connection_creation_rate is too large"),
    ],
)  # fmt: skip
def test_a_quota_that_makes_no_sense_is_rejected_and_nothing_of_its_entry_is_stored(
    entity: Any, name: str, value: float, error: str
) -> None:
    cluster = Cluster()
    assert cluster.alter(entity, (CONSUMER, 7.0), (name, value)).startswith((error, "Invalid configuration key"))
    assert cluster.alter(entity, (name, value)).startswith(error)
    assert cluster.image is NO_IMAGE


def test_validating_a_change_stores_nothing() -> None:
    cluster = Cluster()
    assert not cluster.alter(ALICE, (PRODUCER, 10.0), validate_only=True)
    assert cluster.image is NO_IMAGE


def test_an_entity_or_a_quota_that_a_request_names_twice_is_not_changed() -> None:
    twice = [QuotaChange(ALICE, [(PRODUCER, 1.0)]), QuotaChange(ALICE, [(PRODUCER, 2.0)])]
    decision = alter_client_quotas(NO_IMAGE, twice)
    assert [result.message for result in decision.reply] == [
        "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    ]
    assert not decision.changes
    assert Cluster().alter(ALICE, (PRODUCER, 1.0), (PRODUCER, 2.0)).startswith("Ignoring duplicate")


def test_a_stored_value_that_makes_no_sense_is_ignored() -> None:
    cluster = Cluster()
    cluster.put("/config/users/alice", json.dumps({"version": 1, "config": {PRODUCER: "lots", CONSUMER: "5"}}).encode())
    assert client_quotas(cluster.image) == {QuotaEntity(user="alice"): {CONSUMER: 5.0}}


def test_a_filter_matches_names_defaults_or_any_name_and_strictly_no_other_type() -> None:
    cluster = Cluster()
    for entity in (
        [("user", "a")], [("user", None)], [("user", "a"), ("client-id", "c")], [("user", "a"), ("client-id", None)],
        [("client-id", "c")],
    ):  # fmt: skip
        cluster.alter(entity, (PRODUCER, 1.0))
    cluster.alter([("ip", "1.2.3.4")], ("connection_creation_rate", 5.0))
    exact = Component("user", MatchType.EXACT, "a")
    assert cluster.describe(exact) == {"users/a", "users/a/clients/c", "users/a/clients/<default>"}
    assert cluster.describe(exact, strict=True) == {"users/a"}
    assert cluster.describe(Component("user", MatchType.DEFAULT)) == {"users/<default>"}
    assert cluster.describe(Component("user", MatchType.SPECIFIED), strict=True) == {"users/a", "users/<default>"}
    assert cluster.describe(exact, Component("client-id", MatchType.DEFAULT)) == {"users/a/clients/<default>"}
    assert cluster.describe(Component("ip", MatchType.SPECIFIED)) == {"ips/1.2.3.4"}
    assert len(cluster.describe()) == 6
    assert cluster.describe(strict=True) == set()
    assert cluster.describe(Component("user", MatchType.EXACT, "")) == set()


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([Component("", 2)], "Invalid empty entity type."),
        ([Component("group", 2)], "Unsupported entity type group"),
        ([Component("user", 0)], "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([Component("user", 1, "x")], "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([Component("user", 9)], "Unknown match type 9"),
        ([Component("user", 2), Component("user", 2)], "Entity type user cannot appear more than once in the filter."),
        ([Component("ip", 2), Component("user", 2)], "Invalid entity filter component combination."),
    ],
)
def test_a_filter_that_makes_no_sense_is_rejected(components: list[Component], error: str) -> None:
    with pytest.raises(KafkaError) as caught:
        describe_client_quotas({}, components)
    assert caught.value.detail.startswith(error)


def test_an_unchanged_quota_is_not_committed_again() -> None:
    cluster = Cluster()
    cluster.alter(ALICE, (PRODUCER, 10.0))
    again = alter_client_quotas(cluster.image, [QuotaChange(ALICE, [(PRODUCER, 10.0), (CONSUMER, None)])])
    assert not again.changes
    assert isinstance(alter_client_quotas(cluster.image, [QuotaChange(ALICE, [(PRODUCER, None)])]).changes[0], Remove)
