"""SaslHandshake (API 17): chooses the SASL mechanism (KIP-43). Pure.

v0   tokens follow without Kafka headers
v1   tokens follow in SaslAuthenticate requests (KIP-152); never flexible, for old clients' sake (KAFKA-9577)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class SaslHandshakeRequest(Message, api_key=17, versions=range(0, 2)):
    mechanism: str = field("string")


class SaslHandshakeResponse(Message, api_key=17, versions=range(0, 2)):
    error_code: int       = field("int16")
    mechanisms: list[str] = field("[]string")
