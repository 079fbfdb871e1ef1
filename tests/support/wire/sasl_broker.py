"""A broker for tests of the client's SASL: its listener knows one user, and notes what it is asked."""

import asyncio
from typing import TYPE_CHECKING, Any

from ottla.errors import ErrorCode
from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import decode_request_header, encode_response
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.security.sasl import scram_math
from ottla.security.sasl.scram_math import ClientFinal, ClientFirst, ServerFinal, ServerFirst
from tests.support.wire.scram_credentials import new_credential

if TYPE_CHECKING:
    from collections.abc import Callable

SALT = b"salt of this user"


class SaslBroker(asyncio.Protocol):
    """Answers ApiVersions, the SASL exchange and Metadata, and closes connections that ask anything else too early.

    `asked` has the names of the requests, with the generation of the login that they were sent under.
    """

    def __init__(
        self,
        *,
        mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"),
        username: str = "alice",
        password: str = "wonderland",
        token: str = "token-1",
        lifetime_ms: int = 0,
        authenticate_version: int = 2,
        iterations: int = 4096,
        lies: bool = False,
        is_open: bool = False,
        on_metadata: "Callable[[SaslBroker, int, int], None] | None" = None,
    ) -> None:
        self.mechanisms = mechanisms
        self.username, self.password, self.token = username, password, token
        self.lifetime_ms = lifetime_ms
        self.authenticate_version = authenticate_version
        self.iterations = iterations
        self.lies = lies
        self.is_open = is_open
        self.on_metadata = on_metadata
        self.asked: list[tuple[str, int]] = []
        self.logins = 0
        self.mechanism = ""
        self.first: ClientFirst | None = None
        self.server_first: ServerFirst | None = None
        self.received = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "big")
            if size > 100 << 20:  # socket.request.max.bytes; a TLS handshake begins like that
                self.transport.close()
                return
            if len(self.received) < 4 + size:
                return
            frame, self.received = self.received[4 : 4 + size], self.received[4 + size :]
            header = decode_request_header(frame)
            api = API[header.api_key]
            self.asked.append((api.name, self.logins))
            request = api.request.decode(frame, header.api_version, header.body_offset)
            self.handle(header.api_key, header.api_version, header.correlation_id, request)

    def handle(self, key: int, version: int, correlation_id: int, request: Any) -> None:
        if key == ApiKey.API_VERSIONS:
            self.answer(key, version, correlation_id, self.versions())
        elif key == ApiKey.SASL_HANDSHAKE:
            self.answer(key, version, correlation_id, self.handshake(request.mechanism))
        elif key == ApiKey.SASL_AUTHENTICATE and self.mechanism:
            self.answer(key, version, correlation_id, self.authenticate(bytes(request.auth_bytes)))
        elif self.is_open or (self.logins and not self.mechanism):
            if self.on_metadata is not None:
                self.on_metadata(self, version, correlation_id)
            else:
                self.answer_metadata(version, correlation_id)
        else:
            self.transport.close()

    def answer(self, key: int, version: int, correlation_id: int, message: Any) -> None:
        self.transport.write(encode_response(key, version, correlation_id, message))

    def answer_metadata(self, version: int, correlation_id: int, throttle_ms: int = 0) -> None:
        answer = MetadataResponse(cluster_id=f"answer {correlation_id}", throttle_time_ms=throttle_ms)
        self.answer(ApiKey.METADATA, version, correlation_id, answer)

    def versions(self) -> ApiVersionsResponse:
        served = (ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        keys = [
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=API[key].min_version, max_version=API[key].max_version
            )
            for key in served
        ]
        keys[-1].max_version = self.authenticate_version
        return ApiVersionsResponse(api_keys=keys)

    def handshake(self, mechanism: str) -> Any:
        response = API[ApiKey.SASL_HANDSHAKE].response
        if self.is_open:
            return response(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if mechanism not in self.mechanisms:
            return response(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=list(self.mechanisms))
        self.mechanism, self.first = mechanism, None
        return response(mechanisms=list(self.mechanisms))

    def authenticate(self, token: bytes) -> Any:
        if self.mechanism == "PLAIN":
            is_right = token == f"\0{self.username}\0{self.password}".encode()
            return self.done() if is_right else self.refused("Authentication failed: Invalid username or password")
        if self.mechanism == "OAUTHBEARER":
            if token == b"\x01":
                return self.refused("the token is not valid")
            is_right = token.startswith(f"n,,\x01auth=Bearer {self.token}\x01".encode())
            return self.done() if is_right else self.more(b'{"status":"invalid_token"}')
        return self.scram(token)

    def scram(self, token: bytes) -> Any:
        mechanism = scram_math.SCRAM_MECHANISMS[self.mechanism]
        if self.first is None:
            self.first = ClientFirst.parse(token)
            self.server_first = ServerFirst.create(self.first.nonce + "server", SALT, self.iterations)
            return self.more(self.server_first.text.encode())
        assert self.server_first is not None
        final = ClientFinal.parse(token)
        credential = new_credential(mechanism, self.password, SALT, self.iterations)
        signed = scram_math.auth_message(self.first.bare, self.server_first.text, final.without_proof)
        is_right = scram_math.is_proof_of(mechanism, credential.stored_key, signed, final.proof)
        if not self.lies and (not is_right or self.first.name != self.username):
            return self.refused("invalid credentials")
        key = b"made up" if self.lies else credential.server_key
        return self.done(ServerFinal(scram_math.server_signature(mechanism, key, signed)).encode())

    def more(self, token: bytes) -> Any:
        return API[ApiKey.SASL_AUTHENTICATE].response(auth_bytes=token)

    def done(self, token: bytes = b"") -> Any:
        self.mechanism = ""
        self.logins += 1
        return API[ApiKey.SASL_AUTHENTICATE].response(auth_bytes=token, session_lifetime_ms=self.lifetime_ms)

    def refused(self, message: str) -> Any:
        return API[ApiKey.SASL_AUTHENTICATE].response(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
        )
