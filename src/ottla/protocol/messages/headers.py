"""The headers of requests and responses. Pure.

Flexible messages have request header v2 and response header v1 (KIP-482). A response to ApiVersions always has
header v0, so that clients of any age can read it (KIP-511).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class RequestHeader(Message, versions=range(1, 3), flexible_since=2):
    request_api_key:     int        = field("int16")
    request_api_version: int        = field("int16")
    correlation_id:      int        = field("int32")
    client_id:           str | None = field("string", nullable="0+", compact=False)


class ResponseHeader(Message, versions=range(0, 2), flexible_since=1):
    correlation_id: int = field("int32")
