"""ApiVersions (API 18): tells which APIs and versions a broker serves, and its features. Pure.

Versions: v3 is flexible and carries the client's name; its answer still has the oldest header; v4 lists
features from level 0; v5 lets the client name the broker it expects (KIP-1242).
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
