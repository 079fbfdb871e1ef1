"""SaslAuthenticate v0-2: carries the tokens of a SASL exchange (KIP-152).

v1   the lifetime of the session, for clients that reauthenticate (KIP-368)
v2   flexible (KIP-482)
"""

from ottla.broker.authentication.sasl_listener import SaslConnection
from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(ApiKey.SASL_AUTHENTICATE)
async def sasl_authenticate(request: SaslAuthenticateRequest, context: Context) -> SaslAuthenticateResponse:
    authenticator = context.connection.authenticator
    if not isinstance(authenticator, SaslConnection):
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate on a listener without SASL",
        )
    try:
        outcome, lifetime_ms = await authenticator.authenticate(bytes(request.auth_bytes))
    except KafkaError as error:
        return SaslAuthenticateResponse(error_code=error.code, error_message=error.detail)
    return SaslAuthenticateResponse(auth_bytes=outcome.challenge, session_lifetime_ms=lifetime_ms)
