"""SaslHandshake v0-1: a client chooses its SASL mechanism (KIP-43).

v0   tokens follow as bare frames
v1   tokens follow in SaslAuthenticate (KIP-152)

On listeners without SASL, and after authentication, it is answered with ILLEGAL_SASL_STATE, unless the client
reauthenticates (KIP-368).
"""

from collections.abc import Awaitable

from ottla.broker.authentication.sasl_listener import SaslConnection
from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(ApiKey.SASL_HANDSHAKE)
def sasl_handshake(
    request: SaslHandshakeRequest, context: Context
) -> SaslHandshakeResponse | Awaitable[SaslHandshakeResponse]:
    authenticator = context.connection.authenticator
    if not isinstance(authenticator, SaslConnection):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    try:
        authenticator.handshake(request.mechanism, context.api_version)
    except KafkaError as error:
        if authenticator.is_authenticated:
            return SaslHandshakeResponse(error_code=error.code, mechanisms=authenticator.mechanisms)
        return _refuse(authenticator, error)
    return SaslHandshakeResponse(mechanisms=authenticator.mechanisms)


async def _refuse(authenticator: SaslConnection, error: KafkaError) -> SaslHandshakeResponse:
    await authenticator.fail(error.code, error.detail)
    return SaslHandshakeResponse(error_code=error.code, mechanisms=authenticator.mechanisms)
