"""The rules of UpdateFeatures."""

import pytest

from ottla.broker.settings.config import Settings, load_config
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.changes.features import FEATURES, FeatureUpdate, finalized_level, update_features
from ottla.metadata.changes.registration import Joining, register
from ottla.metadata.controller.decisions import Put
from ottla.metadata.image import BrokerRegistration, ClusterImage
from ottla.metadata.store import Change, Entry
from ottla.protocol.wire_values import UpgradeType

NAME = "transaction.version"
UP, SAFE, UNSAFE = UpgradeType


def at(level: int) -> ClusterImage:
    return ClusterImage(features={NAME: level})


def after(image: ClusterImage, *updates: FeatureUpdate, validate_only: bool = False) -> int | None:
    """The level that an update stores; None if it changes nothing."""
    changes = update_features(image, updates, validate_only=validate_only).changes
    if not changes:
        return None
    (change,) = changes
    assert isinstance(change, Put)
    assert change.key == records.FEATURES
    return records.read_features(change.key, change.value)[NAME]


def test_a_new_cluster_runs_at_the_default_level() -> None:
    assert finalized_level(ClusterImage(), NAME) == FEATURES[NAME].default_level == 2
    assert after(ClusterImage(), FeatureUpdate(NAME, 1, SAFE)) == 1


def test_a_level_that_this_version_does_not_support_counts_as_the_highest() -> None:
    assert finalized_level(at(9), NAME) == 2


@pytest.mark.parametrize(
    ("current", "level", "upgrade_type", "stored"),
    [
        (1, 2, UP, 2),
        (0, 2, UP, 2),
        (2, 1, SAFE, 1),
        (2, 0, UNSAFE, 0),
        (2, 2, UP, None),
        (2, 2, SAFE, None),
        (0, 0, UP, None),
    ],
)
def test_levels_go_up_and_down(current: int, level: int, upgrade_type: int, stored: int | None) -> None:
    assert after(at(current), FeatureUpdate(NAME, level, upgrade_type)) == stored


@pytest.mark.parametrize(
    ("name", "level", "upgrade_type", "reason"),
    [
        (NAME, 0, UP, "to lower it, use upgrade type 2"),
        (NAME, 2, SAFE, "to raise it, use upgrade type 1"),
        (NAME, 2, UNSAFE, "to raise it, use upgrade type 1"),
        (NAME, 3, UP, "supports versions 0 to 2"),
        (NAME, -1, SAFE, "lowest version of a feature is 0"),
        (NAME, 1, 0, "upgrade type 0 is unknown"),
        (NAME, 1, 4, "upgrade type 4 is unknown"),
        ("no.such", 1, UP, "does not support this feature"),
        ("no.such", 0, SAFE, "does not support this feature"),
    ],
)
def test_an_update_that_is_not_possible_is_refused(name: str, level: int, upgrade_type: int, reason: str) -> None:
    with pytest.raises(KafkaError, match=reason) as caught:
        update_features(at(1), [FeatureUpdate(name, level, upgrade_type)])
    assert caught.value.code == ErrorCode.INVALID_UPDATE_VERSION


def test_all_features_are_updated_or_none() -> None:
    with pytest.raises(KafkaError, match=r"No feature was changed: no\.such"):
        update_features(at(1), [FeatureUpdate(NAME, 2), FeatureUpdate("no.such", 1)])


def test_the_last_update_of_a_feature_counts() -> None:
    assert after(at(1), FeatureUpdate(NAME, 9), FeatureUpdate(NAME, 2)) == 2


def test_validate_only_stores_nothing() -> None:
    assert after(at(1), FeatureUpdate(NAME, 2), validate_only=True) is None


def test_the_epoch_increases_with_every_change() -> None:
    image, epochs = ClusterImage(), []
    for version, level in enumerate((1, 2, 0)):
        entry = Entry(records.FEATURES, records.write_features({NAME: level}), version, 1, version)
        image = image.apply([Change(records.FEATURES, entry, version)], version)
        assert finalized_level(image, NAME) == level
        epochs.append(image.features_epoch)
    assert epochs == [1, 2, 3], "a cluster without changes is at 0"


@pytest.mark.parametrize("value", [b"no", b"{}", b'{"features":[]}', b'{"features":{"a":{}}}', b'{"features":{"a":1}}'])
def test_a_damaged_record_is_reported(value: bytes) -> None:
    with pytest.raises(records.RecordError, match="/feature"):
        records.read_features(records.FEATURES, value)


# Rolling upgrades


def test_a_level_is_raised_only_when_every_broker_supports_it() -> None:
    old = BrokerRegistration(1, 1, {}, features={NAME: (0, 1)})
    image = ClusterImage(features={NAME: 0}, brokers={0: BrokerRegistration(0, 1, {}), 1: old})
    assert after(image, FeatureUpdate(NAME, 1)) == 1
    with pytest.raises(KafkaError, match=r"Broker 1 supports versions 0 to 1: upgrade it first") as caught:
        after(image, FeatureUpdate(NAME, 2))
    assert caught.value.code == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("levels", "problem"),
    [
        ({NAME: 9}, "feature transaction.version at level 9; this version supports levels 0 to 2"),
        ({"new.feature": 1}, "feature new.feature at level 1; this version does not know it"),
        ({"ottla.metadata.version": 2}, "supports levels 1 to 1"),
    ],
)
def test_a_broker_does_not_join_a_cluster_whose_levels_it_does_not_support(
    levels: dict[str, int], problem: str
) -> None:
    joining = Joining(BrokerRegistration(0, 0, {}))
    settings = Settings(load_config({}))
    with pytest.raises(KafkaError, match=problem):
        register(ClusterImage(cluster_id="c", features=levels), joining, settings, "c", 0)
    register(ClusterImage(cluster_id="c", features={NAME: 1, "new.feature": 0}), joining, settings, "c", 0)


def test_a_new_cluster_stores_its_levels_and_brokers_say_what_they_support() -> None:
    decision = register(ClusterImage(), Joining(BrokerRegistration(0, 0, {})), Settings(load_config({})), "c", 0)
    entries = [Change(c.key, Entry(c.key, c.value, 0, 1, 1), 1) for c in decision.changes if isinstance(c, Put)]
    image = ClusterImage().apply(entries, 1)
    assert image.features == {NAME: 2, "ottla.metadata.version": 1}
    assert image.brokers[0].features == {NAME: (0, 2), "ottla.metadata.version": (1, 1)}
