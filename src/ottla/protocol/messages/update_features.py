"""UpdateFeatures (API 57): changes finalized feature levels (KIP-584). Pure.

v0   the first version
v1   upgrade type and dry run (KIP-778)
v2   no results for single features

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class UpdateFeaturesRequest(Message, api_key=57, versions=range(0, 3), flexible_since=0):
    timeout_ms:      int  = field("int32", default=60_000)
    feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = field("[]FeatureUpdateKey")
    validate_only:   bool = field("bool", "1+")

    class FeatureUpdateKey(Struct):
        feature:           str  = field("string")
        max_version_level: int  = field("int16")
        allow_downgrade:   bool = field("bool", "0")
        upgrade_type:      int  = field("int8", "1+", default=1)


class UpdateFeaturesResponse(Message, api_key=57, versions=range(0, 3), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
    results:          list[UpdateFeaturesResponse.UpdatableFeatureResult] = field("[]UpdatableFeatureResult", "0-1", ignorable=True)

    class UpdatableFeatureResult(Struct):
        feature:       str        = field("string")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
