"""DeleteTopics (API 20): deletes topics. Pure.

v1   the oldest version since Kafka 4.0 (KIP-896)
v2   a broker answers before it throttles (KIP-219)
v3   may answer TOPIC_DELETION_DISABLED
v4   flexible: compact lengths and tagged fields (KIP-482)
v5   error message; may answer THROTTLING_QUOTA_EXCEEDED (KIP-599)
v6   topics by name or by id (KIP-516)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DeleteTopicsRequest(Message, api_key=20, versions=range(1, 7), flexible_since=4):
    topics:      list[DeleteTopicsRequest.DeleteTopicState] = field("[]DeleteTopicState", "6+")
    topic_names: list[str] = field("[]string", "1-5", ignorable=True)
    timeout_ms:  int       = field("int32")

    class DeleteTopicState(Struct):
        name:     str | None = field("string", "6+", nullable="0+", default=None)
        topic_id: bytes      = field("uuid", "6+")


class DeleteTopicsResponse(Message, api_key=20, versions=range(1, 7), flexible_since=4):
    throttle_time_ms: int = field("int32")
    responses:        list[DeleteTopicsResponse.DeletableTopicResult] = field("[]DeletableTopicResult")

    class DeletableTopicResult(Struct):
        name:          str | None = field("string", nullable="6+")
        topic_id:      bytes      = field("uuid", "6+", ignorable=True)
        error_code:    int        = field("int16")
        error_message: str | None = field("string", "5+", nullable="0+", default=None, ignorable=True)
