"""The cluster's features: which levels are supported, and the rules of UpdateFeatures (KIP-584, KIP-778). Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.controller.decisions import Decision, Put
from ottla.metadata.image import ClusterImage
from ottla.protocol.wire_values import UpgradeType


class Feature(NamedTuple):
    """A feature's levels: those that are supported, and the one that a new cluster runs at."""

    min_level: int
    max_level: int
    default_level: int


FEATURES: Mapping[str, Feature] = {"transaction.version": Feature(0, 2, 2), "ottla.metadata.version": Feature(1, 1, 1)}
"""Features by name. A row here changes what clients do, so it must come with the code that serves it.

`ottla.metadata.version` is the format of the stored metadata. During a rolling upgrade, brokers of two versions share
it: a new format gets a new level, and is written only once an operator has raised the level.
"""


class FeatureUpdate(NamedTuple):
    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def finalized_level(image: ClusterImage, name: str) -> int:
    """The level that the cluster runs at."""
    feature = FEATURES[name]
    # An older version of this software may find a level that it does not support.
    return min(image.features.get(name, feature.default_level), feature.max_level)


def supported_levels() -> dict[str, tuple[int, int]]:
    """The lowest and highest level of each feature that this version supports."""
    return {name: (feature.min_level, feature.max_level) for name, feature in FEATURES.items()}


def default_levels() -> dict[str, int]:
    """The levels of a new cluster. They are stored, so that a newer version with other defaults keeps them."""
    return {name: feature.default_level for name, feature in FEATURES.items()}


def check_supported(image: ClusterImage) -> None:
    """Raises UNSUPPORTED_VERSION if the cluster runs at a level that this version does not support."""
    for name, level in image.features.items():
        feature = FEATURES.get(name)
        if feature is None and level > 0:
            problem = "this version does not know it"
        elif feature is not None and not feature.min_level <= level <= feature.max_level:
            problem = f"this version supports levels {feature.min_level} to {feature.max_level}"
        else:
            continue
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"the cluster runs with feature {name} at level {level}; {problem}"
        )


def update_features(
    image: ClusterImage, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
) -> Decision[None]:
    """Changes all levels or none. If a feature is in the request twice, the last update counts."""
    levels = dict(image.features)
    for update in {update.name: update for update in updates}.values():
        if (problem := _problem(image, update)) is not None:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"No feature was changed: {update.name} cannot be set to version {update.level}. {problem}",
            )
        if update.level != finalized_level(image, update.name):
            levels[update.name] = update.level
    if validate_only or levels == image.features:
        return Decision(None)
    return Decision(None, [Put(records.FEATURES, records.write_features(levels))])


def _problem(image: ClusterImage, update: FeatureUpdate) -> str | None:
    name, level, upgrade_type = update
    feature = FEATURES.get(name)
    if level < 0:
        return "The lowest version of a feature is 0."
    if upgrade_type not in set(UpgradeType):
        return f"The upgrade type {upgrade_type} is unknown: 1 is an upgrade, 2 and 3 are downgrades."
    if feature is None:
        return f"This broker does not support this feature; it supports {', '.join(FEATURES)}."
    if not feature.min_level <= level <= feature.max_level:
        return f"This broker supports versions {feature.min_level} to {feature.max_level}."
    for broker in image.brokers.values():
        lowest, highest = broker.features.get(name, (feature.min_level, feature.max_level))
        if not lowest <= level <= highest:
            return f"Broker {broker.broker_id} supports versions {lowest} to {highest}: upgrade it first."
    current = finalized_level(image, name)
    if level < current and upgrade_type == UpgradeType.UPGRADE:
        return f"It is at version {current}: to lower it, use upgrade type 2 (safe downgrade) or 3 (unsafe downgrade)."
    if level > current and upgrade_type != UpgradeType.UPGRADE:
        return f"It is at version {current}: to raise it, use upgrade type 1 (upgrade)."
    return None
