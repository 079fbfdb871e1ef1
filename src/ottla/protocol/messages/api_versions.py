"""ApiVersions (API 18): which APIs and versions a broker serves, and its features. Pure.

v0   the first version
v1   throttle time
v2   a broker answers before it throttles (KIP-219)
v3   flexible (KIP-482), except the header of the response; name and version of the client (KIP-511)
v4   features may start at level 0 (KAFKA-17011)
v5   the client may name the broker it expects (KIP-1242)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ApiVersionsRequest(Message, api_key=18, versions=range(0, 6), flexible_since=3):
    client_software_name:    str        = field("string", "3+", ignorable=True)
    client_software_version: str        = field("string", "3+", ignorable=True)
    cluster_id:              str | None = field("string", "5+", nullable="0+", default=None, ignorable=True)
    node_id:                 int        = field("int32", "5+", default=-1, ignorable=True)


class ApiVersionsResponse(Message, api_key=18, versions=range(0, 6), flexible_since=3):
    error_code:               int  = field("int16")
    api_keys:                 list[ApiVersionsResponse.ApiVersion] = field("[]ApiVersion")
    throttle_time_ms:         int  = field("int32", "1+", ignorable=True)
    supported_features:       list[ApiVersionsResponse.SupportedFeatureKey] = field("[]SupportedFeatureKey", "3+", tag=0, ignorable=True)
    finalized_features_epoch: int  = field("int64", "3+", default=-1, tag=1, ignorable=True)
    finalized_features:       list[ApiVersionsResponse.FinalizedFeatureKey] = field("[]FinalizedFeatureKey", "3+", tag=2, ignorable=True)
    zk_migration_ready:       bool = field("bool", "3+", tag=3, ignorable=True)

    class ApiVersion(Struct):
        api_key:     int = field("int16")
        min_version: int = field("int16")
        max_version: int = field("int16")

    class SupportedFeatureKey(Struct):
        name:        str = field("string", "3+")
        min_version: int = field("int16", "3+")
        max_version: int = field("int16", "3+")

    class FinalizedFeatureKey(Struct):
        name:              str = field("string", "3+")
        max_version_level: int = field("int16", "3+")
        min_version_level: int = field("int16", "3+")
