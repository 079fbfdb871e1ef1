"""SASL on a listener: what a client may send before it has authenticated, and how it reauthenticates.

A connection begins with SaslHandshake, which chooses the mechanism. After v1 of it, tokens follow in SaslAuthenticate;
after v0, as bare frames (KIP-43, KIP-152). `security/sasl/server_exchanges.py` has the mechanisms.
"""

import asyncio
import enum
import inspect
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from ottla.checks import moved
from ottla.clock import Clock, MonotonicClock, MonotonicMs
from ottla.errors import ErrorCode, KafkaError
from ottla.net.log_limit import LogLimit, safe_to_log
from ottla.net.server.ordered_responses import Response
from ottla.net.server.server import Connection, Disconnect, Handle
from ottla.protocol.api import API, BEFORE_AUTHENTICATION, ApiKey
from ottla.security.principal import USER, Principal
from ottla.security.sasl.server_exchanges import Outcome, SaslFailure

log = logging.getLogger("ottla.security")

REAUTHENTICATION = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
MIN_REAUTHENTICATION_INTERVAL_MS = 1000
"""As in Kafka, a client cannot reauthenticate within a second of its last authentication."""

_api_key = struct.Struct(">h").unpack_from
_size = struct.Struct(">i").pack


class Exchange(Protocol):
    """The server's side of one authentication."""

    def answer(self, token: bytes, /) -> Outcome | Awaitable[Outcome]: ...


class Mechanism(NamedTuple):
    """A mechanism of a listener."""

    start: Callable[[], Exchange]
    max_session_ms: int = 0
    """`connections.max.reauth.ms`; 0: sessions do not end."""


class SaslCounters:
    """What happened on a listener since the start."""

    def __init__(self) -> None:
        self.successful = self.failed = self.successful_again = self.failed_again = self.expired = 0


class SaslListener:
    """What the connections of one listener share."""

    def __init__(
        self,
        name: str,
        mechanisms: Mapping[str, Mechanism],
        *,
        dispatch: Handle,
        clock: Clock,
        monotonic: MonotonicClock,
        failure_delay_ms: int = 100,
        max_frame_bytes: int = 524_288,
    ) -> None:
        self.name = name
        self.mechanisms = mechanisms
        self.dispatch = dispatch
        self.clock = clock
        self.monotonic = monotonic
        self.failure_delay_ms = failure_delay_ms
        self.max_frame_bytes = max_frame_bytes
        self.counters = SaslCounters()
        self.failures = LogLimit()

    def authenticator(self, connection: Connection) -> "SaslConnection":
        return SaslConnection(self, connection)


class State(enum.Enum):
    HANDSHAKE = 0
    """Waits for SaslHandshake."""
    TOKENS = 1
    """Waits for SaslAuthenticate."""
    BARE_TOKENS = 2
    """Waits for a token without a Kafka header, after v0 of SaslHandshake."""
    CHECKING = 3
    """Checks a token, which may take a while. No other request is accepted before the answer."""
    AUTHENTICATED = 4
    FAILED = 5


_TRANSITIONS: dict[State, frozenset[State]] = {
    State.HANDSHAKE: frozenset({State.TOKENS, State.BARE_TOKENS, State.FAILED}),
    State.TOKENS: frozenset({State.CHECKING, State.FAILED}),
    State.BARE_TOKENS: frozenset({State.CHECKING, State.FAILED}),
    State.CHECKING: frozenset({State.TOKENS, State.BARE_TOKENS, State.AUTHENTICATED, State.FAILED}),
    # A client may authenticate again.
    State.AUTHENTICATED: frozenset({State.TOKENS, State.BARE_TOKENS, State.FAILED}),
    State.FAILED: frozenset({State.FAILED}),
}


class SaslConnection:
    """Authenticates one client. Until that is done, it handles every frame of the connection."""

    def __init__(self, listener: SaslListener, connection: Connection) -> None:
        self.max_frame_bytes = listener.max_frame_bytes
        self._listener = listener
        self._connection = connection
        self._state = State.HANDSHAKE
        self._mechanism = ""
        self._exchange: Exchange | None = None
        # Not states: both are true or false in several of them.
        self._is_again = False
        """Whether this is a re-authentication."""
        self._is_reported = False
        """Whether the failure of this authentication was counted and logged."""
        self._authenticated_at = MonotonicMs(0)
        self.session_expires: MonotonicMs | None = None

    def __call__(self, frame: bytes | memoryview, connection: Connection, /) -> Response | Awaitable[Response]:
        if self._state in (State.CHECKING, State.FAILED):
            raise Disconnect("a request before the authentication was complete")
        if self._state is State.BARE_TOKENS:
            self._move(State.CHECKING)
            return self._bare(bytes(frame))
        key = _api_key(frame)[0] if len(frame) >= 2 else -1
        if key not in BEFORE_AUTHENTICATION:
            name = API[key].name if key in API else f"a request with API key {key}"
            raise Disconnect(
                f"{name} before authentication: listener {self._listener.name} requires SASL "
                f"({', '.join(self._listener.mechanisms)})"
            )
        return self._listener.dispatch(frame, connection)

    # --- called by the handlers of SaslHandshake and SaslAuthenticate -------------------------------------

    @property
    def mechanisms(self) -> list[str]:
        return list(self._listener.mechanisms)

    @property
    def is_authenticated(self) -> bool:
        return self._state is State.AUTHENTICATED

    def handshake(self, mechanism: str, version: int) -> None:
        """Chooses the mechanism. Raises KafkaError."""
        listener = self._listener
        if self._state is State.AUTHENTICATED:
            elapsed = listener.monotonic() - self._authenticated_at
            if elapsed < MIN_REAUTHENTICATION_INTERVAL_MS:
                raise KafkaError(
                    ErrorCode.ILLEGAL_SASL_STATE,
                    f"the client reauthenticates {elapsed} ms after its last authentication; "
                    f"the minimum is {MIN_REAUTHENTICATION_INTERVAL_MS} ms",
                )
            if mechanism != self._mechanism:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                    f"cannot change the mechanism from {self._mechanism} to {mechanism}",
                )
            self._is_again = True
        elif self._state is not State.HANDSHAKE:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake in the middle of an authentication")
        chosen = listener.mechanisms.get(mechanism)
        if chosen is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"{mechanism[:80]!r} is not enabled; use one of {', '.join(listener.mechanisms)}",
            )
        self._mechanism = mechanism
        self._exchange = chosen.start()
        self._move(State.TOKENS if version >= 1 else State.BARE_TOKENS)
        if version == 0 and self._is_again:
            self._connection.gate = self

    async def authenticate(self, token: bytes) -> tuple[Outcome, int]:
        """The answer to a token, and the lifetime of the session in milliseconds (0: it does not end).

        Raises SASL_AUTHENTICATION_FAILED or ILLEGAL_SASL_STATE; the connection ends after that.
        """
        if self._state is not State.TOKENS:
            raise await self.fail(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate without SaslHandshake")
        self._move(State.CHECKING)
        try:
            return await self._step(token, State.TOKENS)
        except SaslFailure as failure:
            raise await self.fail(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failure)) from None
        except Exception:
            # A bug must not give a client another attempt.
            self._move(State.FAILED)
            self._connection.end()
            raise

    async def fail(self, code: ErrorCode, reason: str) -> KafkaError:
        """The error for the client, after a delay that slows down guessing. The connection ends with this answer."""
        self._move(State.FAILED)
        self._report(reason)
        await asyncio.sleep(self._listener.failure_delay_ms / 1000)
        self._connection.end()
        return KafkaError(code, reason)

    def _report(self, reason: str) -> None:
        """Counts and logs a failure, once."""
        if self._is_reported:
            return
        self._is_reported = True
        listener, connection = self._listener, self._connection
        if self._is_again:
            listener.counters.failed_again += 1
        else:
            listener.counters.failed += 1
        if listener.failures.allows(asyncio.get_running_loop().time()):
            log.info(
                "authentication of %s:%d on listener %s failed: %s%s",
                connection.client_host[1:],
                connection.client_port,
                listener.name,
                safe_to_log(reason),
                listener.failures.suffix,
            )

    def _move(self, state: State) -> None:
        self._state = moved(_TRANSITIONS, "SASL on a connection", self._state, state)

    # --- the exchange -------------------------------------------------------------------------------------

    async def _bare(self, token: bytes) -> Response:
        try:
            outcome, _ = await self._step(token, State.BARE_TOKENS)
        except SaslFailure as failure:
            # There is no message that could carry the reason.
            await self.fail(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failure))
            return None
        return _size(len(outcome.challenge)) + outcome.challenge

    async def _step(self, token: bytes, waiting: State) -> tuple[Outcome, int]:
        """Checks a token. If it does not complete the authentication, the next state is `waiting`."""
        assert self._exchange is not None
        answered = self._exchange.answer(token)
        outcome = await answered if inspect.isawaitable(answered) else answered
        if outcome.failure:
            # Not every client acknowledges it: aiokafka continues as if it had succeeded.
            self._report(outcome.failure)
        if self._state is not State.CHECKING:
            raise SaslFailure("the authentication failed while this token was checked")
        if outcome.user is None:
            self._move(waiting)
            return outcome, 0
        return outcome, self._complete(outcome, outcome.user)

    def _complete(self, outcome: Outcome, user: str) -> int:
        listener, connection = self._listener, self._connection
        principal = Principal(USER, user)
        if self._is_again and principal != connection.principal:
            raise SaslFailure(f"Cannot change principals during re-authentication from {connection.principal}")
        if self._is_again:
            listener.counters.successful_again += 1
        else:
            listener.counters.successful += 1
            log.debug("%s:%d is %s", connection.client_host[1:], connection.client_port, principal)
        self._exchange = None
        self._is_again = False
        self._move(State.AUTHENTICATED)
        self._authenticated_at = listener.monotonic()
        lifetime_ms = self._lifetime_ms(outcome)
        self.session_expires = MonotonicMs(self._authenticated_at + lifetime_ms) if lifetime_ms else None
        connection.authenticated(principal, self._in_session if lifetime_ms else None)
        return lifetime_ms

    def _lifetime_ms(self, outcome: Outcome) -> int:
        limit = self._listener.mechanisms[self._mechanism].max_session_ms
        if limit <= 0:
            return 0
        if outcome.expires_ms is None:
            return limit
        return max(1, min(limit, outcome.expires_ms - self._listener.clock()))

    def _in_session(self, frame: bytes | memoryview, connection: Connection) -> Response | Awaitable[Response]:
        """Handles requests of a session with a lifetime (KIP-368). After its end, only reauthentication is accepted."""
        listener = self._listener
        if self.session_expires is not None and listener.monotonic() >= self.session_expires:
            key = _api_key(frame)[0] if len(frame) >= 2 else -1
            if key not in REAUTHENTICATION:
                listener.counters.expired += 1
                raise Disconnect(f"the session of {connection.principal} has expired (connections.max.reauth.ms)")
        return listener.dispatch(frame, connection)
