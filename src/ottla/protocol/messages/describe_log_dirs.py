"""DescribeLogDirs (API 35): the log directories of a broker and the size of each replica (KIP-113). Pure.

v1   the oldest version since Kafka 4.0 (KIP-896)
v2   flexible: compact lengths and tagged fields (KIP-482)
v3   an error code for the whole response (KIP-784)
v4   total and usable bytes of each volume (KIP-827)
v5   cordoned directories (KIP-1066)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeLogDirsRequest(Message, api_key=35, versions=range(1, 6), flexible_since=2):
    topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = field("[]DescribableLogDirTopic", nullable="0+")

    class DescribableLogDirTopic(Struct):
        topic:      str       = field("string")
        partitions: list[int] = field("[]int32")


class DescribeLogDirsResponse(Message, api_key=35, versions=range(1, 6), flexible_since=2):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16", "3+", ignorable=True)
    results:          list[DescribeLogDirsResponse.DescribeLogDirsResult] = field("[]DescribeLogDirsResult")

    class DescribeLogDirsResult(Struct):
        error_code:   int  = field("int16")
        log_dir:      str  = field("string")
        topics:       list[DescribeLogDirsResponse.DescribeLogDirsTopic] = field("[]DescribeLogDirsTopic")
        total_bytes:  int  = field("int64", "4+", default=-1, ignorable=True)
        usable_bytes: int  = field("int64", "4+", default=-1, ignorable=True)
        is_cordoned:  bool = field("bool", "5+", ignorable=True)

    class DescribeLogDirsTopic(Struct):
        name:       str = field("string")
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = field("[]DescribeLogDirsPartition")

    class DescribeLogDirsPartition(Struct):
        partition_index: int  = field("int32")
        partition_size:  int  = field("int64")
        offset_lag:      int  = field("int64")
        is_future_key:   bool = field("bool")
