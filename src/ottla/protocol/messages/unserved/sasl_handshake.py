"""SaslHandshake (API 17): picks the SASL mechanism. Pure.

Versions: v1 says that tokens follow as SaslAuthenticate requests.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class SaslHandshakeRequest(Message, api_key=17, versions=range(0, 2)):
    mechanism: str = field("string")


class SaslHandshakeResponse(Message, api_key=17, versions=range(0, 2)):
    error_code: int       = field("int16")
    mechanisms: list[str] = field("[]string")
