"""Checks whether a broker that closed a new connection without a response uses TLS.

Only for the error message: a broker does not say why it closes a connection whose first bytes it cannot read.
"""

import asyncio
import ssl

from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import encode_request
from ottla.types import Endpoint


async def uses_tls(endpoint: Endpoint) -> bool:
    """Whether the peer completes a TLS handshake. No data is sent, and the certificate is not verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, endpoint.host, endpoint.port, ssl=context
        )
    except (OSError, NotImplementedError):  # a simulated loop has no TLS
        return False
    has_tls = transport.get_extra_info("ssl_object") is not None
    transport.abort()
    return has_tls


async def speaks_kafka_without_tls(endpoint: Endpoint) -> bool:
    """Whether the peer answers ApiVersions on a plain connection."""
    try:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except OSError:
        return False
    correlation_id = 0x4F54544C
    try:
        request = API[ApiKey.API_VERSIONS].request()
        writer.write(encode_request(ApiKey.API_VERSIONS, 0, correlation_id, None, request))
        answer = await reader.readexactly(8)
        return answer[4:] == correlation_id.to_bytes(4, "big")
    except (OSError, EOFError):
        return False
    finally:
        writer.transport.abort()
