"""The client side of one connection: pipelined requests, responses matched by order. OWNER of one socket."""

import asyncio
import functools
import os
import random
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import ottla
from ottla.errors import ErrorCode, KafkaError
from ottla.net.client.authentication import (
    authenticate,
    check_needs_no_sasl,
    check_serves_sasl,
    reauthentication_delay_ms,
)
from ottla.net.client.client_security import ClientSecurity, Login
from ottla.net.client.probing import speaks_kafka_without_tls, uses_tls
from ottla.net.client.tls_errors import NO_TLS_HINT, TLS_HINT, DroppedTlsError, explain_tls, tls_error
from ottla.net.spare_buffers import SpareBuffers
from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import decode_response, encode_request, encode_request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.primitives import ProtocolError
from ottla.types import Endpoint

RECEIVE_BUFFER_BYTES = 64 * 1024
RECEIVE_AT_ONCE_BYTES = 2 * 1024 * 1024
RESPONSE_BYTES_MAX = 1 << 30
SPARE_FRAMES = 4
"""One being received, two whose records wait to be read, one being read."""
SPARE_FRAME_BYTES = 16 * 1024 * 1024
GREETING_BYTES_MAX = 1 << 20
"""An ApiVersions response has a few hundred bytes. Far more means that the peer speaks another protocol."""

MUTES_SINCE_FETCH = 8
"""Brokers that serve this version of Fetch answer before they throttle (KIP-219); older ones delay the response."""

IS_LINUX = sys.platform == "linux"
SOFTWARE_NAME = "ottla"
_UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class Answer(NamedTuple):
    """A response and its version of the API."""

    message: Any
    version: int


class _Pending:
    """A request in flight."""

    __slots__ = ("api_key", "correlation_id", "future", "timeout_ms", "timer", "version")

    def __init__(
        self, api_key: int, version: int, correlation_id: int, future: "asyncio.Future[Answer]", timeout_ms: int
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.future = future
        self.timeout_ms = timeout_ms
        self.timer: asyncio.TimerHandle | None = None


class _Dropped(KafkaError):
    """The broker closed a new connection without a response."""


class _Held(NamedTuple):
    """A request held until the client has reauthenticated or is no longer throttled."""

    api_key: int
    version: int
    message: Any
    future: "asyncio.Future[Answer]"
    timeout_ms: int | None
    expects_response: bool


class Connection(asyncio.BufferedProtocol):
    """One connection to one broker, ready for requests once `open` returns.

    >>> connection = await Connection.open(Endpoint("127.0.0.1", 9092), client_id="me")
    >>> answer = await connection.send(ApiKey.METADATA, lambda version: MetadataRequest(topics=None))
    >>> answer.message.brokers
    """

    def __init__(
        self,
        endpoint: Endpoint,
        client_id: str,
        request_timeout_ms: int,
        on_closed: Callable[["Connection"], None] | None,
        security: ClientSecurity | None = None,
        on_throttled: Callable[[int, int], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.security = security
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.api_versions: dict[int, tuple[int, int]] = {}
        """The versions that the broker serves: API key -> (lowest, highest)."""
        self.features: dict[str, int] = {}
        """The cluster's finalized features, by name."""
        self.closed_by: KafkaError | None = None
        self._on_closed = on_closed
        self._on_throttled = on_throttled
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lost = self._loop.create_future()
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._first_id: int | None = None  # of the first request after the connection was ready
        self._held: deque[_Held] | None = None  # not None while the client reauthenticates or is throttled
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._was_dropped_at_first = False
        self._session_timer: asyncio.TimerHandle | None = None
        self._reauthentication: asyncio.Task[None] | None = None
        self._frame_bytes_max = GREETING_BYTES_MAX
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._buffered = 0
        self._spares = SpareBuffers(SPARE_FRAMES, SPARE_FRAME_BYTES)
        self._frame: memoryview | None = None  # a frame that has not arrived completely is received in place
        self._frame_filled = 0
        self._receive_least = 1
        self._sets_receive_least = IS_LINUX

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        *,
        client_id: str = SOFTWARE_NAME,
        connect_timeout_ms: int = 10_000,
        request_timeout_ms: int = 30_000,
        on_closed: Callable[["Connection"], None] | None = None,
        security: ClientSecurity | None = None,
        may_need_sasl: bool = False,
        on_throttled: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Connects, secures the connection, and negotiates API versions: when it returns, requests may be sent.

        Raises NETWORK_EXCEPTION with the address and the reason, or AuthenticationError if TLS or the login failed.
        With `may_need_sasl`, a client without a login first checks whether the listener requires one.
        `on_throttled(api_key, throttle_ms)` is called whenever the broker throttles the client.
        """
        make = functools.partial(cls, endpoint, client_id, request_timeout_ms, on_closed, security, on_throttled)
        connection: Self | None = None
        is_ready = False
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                try:
                    connection = await cls._connect(make, endpoint, security)
                    await connection._negotiate()  # noqa: SLF001 - its own class
                except _Dropped as error:
                    raise await _explain_drop(endpoint, security) from error
                await connection._become_ready(may_need_sasl)  # noqa: SLF001
                is_ready = True
        except TimeoutError:
            detail = f"{endpoint} did not answer within {connect_timeout_ms} ms"
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, detail) from None
        except OSError as error:
            detail = f"cannot connect to {endpoint}: {_reason(error)}"
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, detail) from None
        finally:
            if connection is not None and not is_ready:
                connection.close()
        return connection

    @classmethod
    async def _connect(cls, make: Callable[[], Self], endpoint: Endpoint, security: ClientSecurity | None) -> Self:
        """Opens the socket, with TLS if the client uses it."""
        loop = asyncio.get_running_loop()
        context = security.context if security is not None else None
        if context is None:
            return (await loop.create_connection(make, endpoint.host, endpoint.port))[1]
        try:
            made = await loop.create_connection(
                make, endpoint.host, endpoint.port, ssl=context, server_hostname=endpoint.host
            )
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError, ConnectionAbortedError):
            raise _Dropped(ErrorCode.NETWORK_EXCEPTION, f"{endpoint} ended the TLS handshake") from None
        except ssl.SSLError as error:
            raise explain_tls(error, endpoint) from None
        return made[1]

    @property
    def is_closed(self) -> bool:
        return self.closed_by is not None

    @property
    def in_flight(self) -> int:
        return len(self._pending) + len(self._held or ())

    @property
    def is_throttled(self) -> bool:
        """Whether the client is above a quota and must not send requests now."""
        return self._throttle_timer is not None

    @property
    def was_dropped_at_first(self) -> bool:
        """Whether the broker closed it without answering any request: the listener may require SASL."""
        return self.is_closed and self._was_dropped_at_first

    def version_for(self, api_key: int, max_version: int | None = None) -> int:
        """The highest version that both sides support. Raises UNSUPPORTED_VERSION if there is none."""
        api = API[api_key]
        served = self.api_versions.get(api_key)
        if served is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"the broker at {self.endpoint} does not serve {api.name}")
        ours = api.max_version if max_version is None else min(api.max_version, max_version)
        version = min(ours, served[1])
        if version < max(api.min_version, served[0]):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"this client needs {api.name} v{api.min_version} to v{ours}, "
                f"but the broker at {self.endpoint} serves v{served[0]} to v{served[1]}",
            )
        return version

    def send(
        self,
        api_key: int,
        build: Callable[[int], Any],
        *,
        max_version: int | None = None,
        timeout_ms: int | None = None,
        expects_response: bool = True,
        future: "asyncio.Future[Answer] | None" = None,
    ) -> "asyncio.Future[Answer]":
        """Writes a request now. The future resolves to its Answer. `build(version)` creates the message.

        A caller that has already returned a future to someone else may pass it.

        Raises KafkaError when the connection is closed or the broker lacks the API.
        """
        if self.closed_by is not None:
            raise self.closed_by
        version = self.version_for(api_key, max_version)
        if future is None:
            future = self._loop.create_future()
        if self._held is not None:
            self._held.append(_Held(api_key, version, build(version), future, timeout_ms, expects_response))
            return future
        return self._write(api_key, version, build(version), future, timeout_ms, expects_response)

    def close(self) -> None:
        """Closes at once. Requests in flight fail with NETWORK_EXCEPTION."""
        self._fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the connection to {self.endpoint} was closed"))

    async def wait_closed(self) -> None:
        if self._transport is not None:
            await asyncio.shield(self._lost)

    @property
    def _received_nothing(self) -> bool:
        return not self.api_versions and not self._buffered and self._frame is None

    # --- requests -----------------------------------------------------------------------------------------

    def _write(
        self,
        api_key: int,
        version: int,
        message: Any,
        future: "asyncio.Future[Answer]",
        timeout_ms: int | None = None,
        expects_response: bool = True,
    ) -> "asyncio.Future[Answer]":
        assert self._transport is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if message.carries_records:
            self._transport.writelines(encode_request_parts(api_key, version, correlation_id, self.client_id, message))
        else:
            self._transport.write(encode_request(api_key, version, correlation_id, self.client_id, message))
        if not expects_response:
            future.set_result(Answer(None, version))
            return future
        timeout_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        pending = _Pending(api_key, version, correlation_id, future, timeout_ms)
        pending.timer = self._loop.call_later(timeout_ms / 1000, self._time_out, pending, timeout_ms)
        self._pending.append(pending)
        return future

    async def _negotiate(self) -> None:
        """Sends ApiVersions in our newest version. An older broker answers in v0 with its versions (KIP-511)."""
        api = API[ApiKey.API_VERSIONS]
        version = api.max_version
        for _attempt in range(2):
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=ottla.__version__)
            answer = await self._write(ApiKey.API_VERSIONS, version, request, self._loop.create_future())
            response = answer.message
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            offered = [entry for entry in response.api_keys if entry.api_key == ApiKey.API_VERSIONS]
            version = min(offered[0].max_version, api.max_version) if offered else 0
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(response.error_code), f"{self.endpoint} refused to negotiate API versions")
        self.api_versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}
        self._frame_bytes_max = RESPONSE_BYTES_MAX

    # --- SASL ---------------------------------------------------------------------------------------------

    async def _become_ready(self, may_need_sasl: bool) -> None:
        """Authenticates, if the client has a login."""
        login = self.security.login if self.security is not None else None
        if login is not None:
            check_serves_sasl(self.api_versions, self.endpoint)
            await self._authenticate(login)
        elif may_need_sasl and ApiKey.SASL_HANDSHAKE in self.api_versions:
            await check_needs_no_sasl(self._ask, self.endpoint)
        self._first_id = self._next_correlation_id

    async def _ask(self, api_key: int, message: Any) -> Any:
        """Sends an authentication request. The user's requests are held meanwhile."""
        if self.closed_by is not None:
            raise self.closed_by
        version = self.version_for(api_key)
        return (await self._write(api_key, version, message, self._loop.create_future())).message

    async def _authenticate(self, login: Login) -> None:
        lifetime_ms = await authenticate(self._ask, self.endpoint, login)
        if lifetime_ms > 0:
            delay_ms = reauthentication_delay_ms(lifetime_ms, random.uniform(-1, 1))
            self._session_timer = self._loop.call_later(delay_ms / 1000, self._begin_reauthentication, login)

    def _begin_reauthentication(self, login: Login) -> None:
        """Holds new requests: until the new login is complete, the broker accepts nothing else (KIP-368)."""
        if self._held is None:
            self._held = deque()
        self._reauthentication = self._loop.create_task(self._reauthenticate(login))

    async def _reauthenticate(self, login: Login) -> None:
        try:
            if self._pending:  # responses arrive in order: the last one ends the wait
                await asyncio.wait([self._pending[-1].future])
            while self._throttle_timer is not None:  # noqa: ASYNC110 - a later response may prolong it
                await asyncio.sleep(self._throttle_timer.when() - self._loop.time())
            await self._authenticate(login)
        except KafkaError as error:
            self._fail(error)
        except Exception as error:  # a bug, but the held requests must not wait forever
            self._fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"authenticating at {self.endpoint}: {error!r}"))
            raise
        finally:
            self._reauthentication = None
            self._release()

    def _release(self) -> None:
        """Sends the requests that were held, unless there is another reason to hold them."""
        if self._reauthentication is not None or self._throttle_timer is not None:
            return
        held, self._held = self._held or (), None
        for request in held:
            if not request.future.done() and self.closed_by is None:
                self._write(*request)

    # --- quotas -------------------------------------------------------------------------------------------

    def _throttle(self, api_key: int, throttle_ms: int) -> None:
        """Holds new requests: the client is above a quota, and the broker does not read requests (KIP-219).

        The timeouts of requests in flight are extended; those of held requests start when they are sent.
        """
        if self.api_versions.get(ApiKey.FETCH, (0, MUTES_SINCE_FETCH))[1] < MUTES_SINCE_FETCH:
            return  # a broker before Kafka 2.0 has already delayed the response
        if self._on_throttled is not None:
            self._on_throttled(api_key, throttle_ms)
        until = self._loop.time() + throttle_ms / 1000
        for pending in self._pending:
            if pending.timer is not None:
                pending.timer.cancel()
                at = pending.timer.when() + throttle_ms / 1000
                pending.timer = self._loop.call_at(at, self._time_out, pending, pending.timeout_ms)
        if self._throttle_timer is not None:
            if self._throttle_timer.when() >= until:
                return
            self._throttle_timer.cancel()
        if self._held is None:
            self._held = deque()
        self._throttle_timer = self._loop.call_at(until, self._end_throttle)

    def _end_throttle(self) -> None:
        self._throttle_timer = None
        self._release()

    def _time_out(self, pending: _Pending, timeout_ms: int) -> None:
        detail = f"{API[pending.api_key].name} got no response from {self.endpoint} within {timeout_ms} ms"
        if not pending.future.done():
            pending.future.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail))
        # Responses are matched by order. After a missing one, later ones cannot be matched: close the connection.
        self._fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{detail}, so the connection was closed"))

    # --- responses ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # With TLS, the kernel receives encrypted bytes: their number is not what the frame still needs.
        self._sets_receive_least = IS_LINUX and transport.get_extra_info("sslcontext") is None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._buffer[self._buffered :]

    def buffer_updated(self, size: int) -> None:
        if self._frame is not None:
            self._frame_filled += size
            self._wait_for(len(self._frame) - self._frame_filled)
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._on_frame(frame)
            return
        self._buffered += size
        start, end = 0, self._buffered
        while end - start >= 4 and self.closed_by is None:
            length = int.from_bytes(self._buffer[start : start + 4], "big")
            if length > self._frame_bytes_max or length < 4:
                self._fail(_not_kafka(self.endpoint, bytes(self._buffer[start : start + 4])))
                return
            start += 4
            if end - start < length:
                self._frame, self._frame_filled = self._spares.view(length), end - start
                self._frame[: end - start] = self._buffer[start:end]
                self._wait_for(length - (end - start))
                start = end
                break
            # Copied, because records are read from the frame long after this buffer is reused.
            self._on_frame(memoryview(bytes(self._buffer[start : start + length])))
            start += length
        rest = end - start
        if start and rest:
            self._buffer[:rest] = bytes(self._buffer[start:end])
        self._buffered = rest

    def _wait_for(self, size: int) -> None:
        """Lets the kernel wake us only when `size` bytes have arrived (SO_RCVLOWAT), if that is a lot.

        Each wake-up costs a turn of the loop, which may have to wait for a thread that holds the GIL.
        """
        least = min(size, RECEIVE_AT_ONCE_BYTES) if size >= RECEIVE_BUFFER_BYTES else 1
        if least == self._receive_least or not self._sets_receive_least:
            return
        assert self._transport is not None
        self._receive_least = least
        ours: socket.socket | None = self._transport.get_extra_info("socket")
        if ours is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _on_frame(self, frame: memoryview) -> None:
        if self.closed_by is not None:
            return
        if not self._pending:
            detail = f"{self.endpoint} sent a response without a request"
            self._fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, detail))
            return
        pending = self._pending.popleft()
        if pending.timer is not None:
            pending.timer.cancel()
        version = pending.version
        try:
            correlation_id, message = _decode(pending.api_key, version, frame)
            if correlation_id != pending.correlation_id:
                raise ProtocolError(f"correlation id {correlation_id} instead of {pending.correlation_id}")
        except ProtocolError as error:
            detail = f"{self.endpoint} answered {API[pending.api_key].name} v{version} with unreadable bytes: {error}"
            fault = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail)
            if not pending.future.done():
                pending.future.set_exception(fault)
            self._fail(fault)
            return
        if (throttle_ms := getattr(message, "throttle_time_ms", 0)) > 0:
            self._throttle(pending.api_key, throttle_ms)
        if not pending.future.done():
            pending.future.set_result(Answer(message, version))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            # With TLS 1.3 the broker rejects a client's certificate after the client has finished the handshake.
            self._fail(explain_tls(error, self.endpoint))
        reason = _reason(error) if isinstance(error, OSError) else "the broker closed it"
        detail = f"lost the connection to {self.endpoint}: {reason}"
        if self.closed_by is None and self._pending:
            self._was_dropped_at_first = self._pending[0].correlation_id == self._first_id
        if self._received_nothing:
            self._fail(_Dropped(ErrorCode.NETWORK_EXCEPTION, detail))
        self._fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, detail))
        if not self._lost.done():
            self._lost.set_result(None)

    def _fail(self, error: KafkaError) -> None:
        if self.closed_by is not None:
            return
        self.closed_by = error
        if self._session_timer is not None:
            self._session_timer.cancel()
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        if self._transport is not None:
            self._transport.abort()
        for pending in self._pending:
            if pending.timer is not None:
                pending.timer.cancel()
            if not pending.future.done():
                pending.future.set_exception(error)
        self._pending.clear()
        for held in self._held or ():
            if not held.future.done():
                held.future.set_exception(error)
        if self._on_closed is not None:
            self._on_closed(self)


def _decode(api_key: int, version: int, frame: memoryview) -> tuple[int, Any]:
    """The correlation id and the response of a frame."""
    if api_key != ApiKey.API_VERSIONS or bytes(frame[4:6]) != _UNSUPPORTED_VERSION:
        return decode_response(api_key, version, frame)
    # A broker that does not know our version answers in version 0 (KIP-511).
    try:
        return decode_response(api_key, 0, frame)
    except ProtocolError:
        # librdkafka's mock cluster answers in another layout: all we know is that it rejected our version.
        return int.from_bytes(frame[:4], "big"), ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)


def _not_kafka(endpoint: Endpoint, first: bytes) -> KafkaError:
    """The error for bytes of another protocol."""
    if first[:2] in (b"\x15\x03", b"\x16\x03"):
        return tls_error(f"{endpoint} uses TLS, but this client does not", TLS_HINT)
    guess = ": it speaks HTTP" if first == b"HTTP" else ""
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{endpoint} does not speak the Kafka protocol{guess}")


async def _explain_drop(endpoint: Endpoint, security: ClientSecurity | None) -> KafkaError:
    """The error for a new connection that the broker closed without a response."""
    if security is not None and security.protocol.uses_tls:
        if await speaks_kafka_without_tls(endpoint):
            return tls_error(f"{endpoint} does not use TLS", NO_TLS_HINT)
        return DroppedTlsError(endpoint)
    if await uses_tls(endpoint):
        return tls_error(f"{endpoint} uses TLS, but this client does not", TLS_HINT)
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{endpoint} closed a new connection without an answer")


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name does not resolve"
    return os.strerror(error.errno).lower() if error.errno else str(error)
