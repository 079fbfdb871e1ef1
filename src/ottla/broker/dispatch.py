"""From a frame to its handler and back: versions, errors, counters.

A handler is a function `handler(request, context)` marked with `@handles`. It runs at once, in the order of
the connection's requests (stage one), and returns the response, None for "no response", or an awaitable of
the response (stage two). It raises KafkaError; only this file turns that into a response.

A new API takes a message table in `protocol/messages/`, a row in `protocol/api.py` and one file in `handlers/`.
`tests/unit/broker/handlers/test_handlers.py` reports what is missing.
"""

import asyncio
import importlib
import logging
import pkgutil
import struct
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Generator
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from ottla.broker import handlers
from ottla.broker.services import Context, Services
from ottla.clock import monotonic
from ottla.errors import ErrorCode, KafkaError
from ottla.net.log_limit import LogLimit
from ottla.net.server.ordered_responses import Response
from ottla.net.server.server import Connection, Disconnect
from ottla.protocol.api import API, Api, ApiKey, snake_case
from ottla.protocol.framing import RequestHeader, decode_request_header, encode_response_parts
from ottla.protocol.primitives import MALFORMED, ProtocolError

if TYPE_CHECKING:
    from ottla.broker.throttling import Throttling
    from ottla.protocol.response_parts import ResponseParts

log = logging.getLogger("ottla.broker")

Handler = Callable[[Any, Context], Any]
Shortcut = Callable[[Any, int, int, int, Services], bytes | None]
"""(frame, position of the body, version, correlation id, services) to the response, or None if nothing was done."""


def _served() -> dict[int, Api]:
    """An API is served if there is a file for it in `handlers/`, in every version that its message table has.

    The files are only listed here. Each is imported with the first request for it, so that a broker starts quickly.
    """
    files = {module.name for module in pkgutil.iter_modules(handlers.__path__)}
    return {key: api for key, api in API.items() if snake_case(api.name) in files}


SERVED = _served()

ADVERTISED_MIN = {ApiKey.PRODUCE: 0}
"""Lower bounds to advertise below what is served. librdkafka sends uncompressed batches unless it sees Produce
v0 (KAFKA-18659); it never uses it."""

LATENCY_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds in seconds of the latency histogram's buckets."""

_handlers: dict[int, Handler] = {}
_header = struct.Struct(">hhih").unpack_from


def handles(key: ApiKey) -> Callable[[Handler], Handler]:
    """Marks the function that answers one API. Its file has the API's name."""

    def register(handler: Handler) -> Handler:
        wanted = f"{handlers.__name__}.{snake_case(API[key].name)}"
        assert handler.__module__ == wanted, f"the handler of {key.name} belongs in {wanted}, not {handler.__module__}"
        _handlers[key] = handler
        return handler

    return register


def handler_for(key: int) -> Handler:
    """The handler of a served API; imports its module on first use."""
    if key not in _handlers:
        importlib.import_module(f"{handlers.__name__}.{snake_case(SERVED[key].name)}")
    return _handlers[key]


def _shortcut(key: int, version: int) -> Shortcut | None:
    """Answers the simplest requests of an API without messages, and returns None for the others."""
    if key == ApiKey.PRODUCE:
        from ottla.broker.handler_support.small_produce import FIRST_VERSION, answer_small_produce

        return answer_small_produce if version >= FIRST_VERSION else None
    return None


class Route:
    """One API in one version: its handler, and its counters."""

    __slots__ = (
        "api_key",
        "buckets",
        "decode",
        "errors",
        "handler",
        "is_flexible",
        "name",
        "requests",
        "response",
        "runs_to_its_end",
        "seconds",
        "shortcut",
        "version",
    )

    def __init__(self, api_key: int, version: int) -> None:
        api = API[api_key]
        self.api_key = api_key
        self.version = version
        self.name = api.name
        self.is_flexible = api.is_flexible(version)
        self.handler = handler_for(api_key)
        # An `async def` handler makes changes (it creates a topic), so it is not cancelled when its client
        # disconnects. The awaitable that a plain function returns only waits, and may be dropped.
        self.runs_to_its_end = iscoroutinefunction(self.handler)
        self.shortcut = _shortcut(api_key, version)
        self.decode = api.request.decode
        self.response = api.response
        self.requests = 0
        self.errors = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(LATENCY_BOUNDS) + 1)

    def observe(self, seconds: float) -> None:
        self.seconds += seconds
        self.buckets[bisect_left(LATENCY_BOUNDS, seconds)] += 1


class Dispatcher:
    """Answers frames. Pass it to `net.server.Server` as its `handle`."""

    def __init__(self, services: Services, *, measure_latency: bool = False) -> None:
        self.services = services
        self.routes: dict[int, Route] = {}
        """By api key in the upper and version in the lower 16 bits."""
        self.malformed = 0
        self.throttling: Throttling | None = None
        """Set while the cluster has quotas for users or client ids."""
        self._measures_latency = measure_latency
        self._failures = LogLimit()

    def __call__(self, frame: bytes | memoryview, connection: Connection) -> Response | Awaitable[Response]:
        started = monotonic() if self._measures_latency else 0.0
        try:
            # The header of a known API and version is decoded here: this is the broker's hottest path.
            key, version, correlation_id, length = _header(frame)
            route = self.routes.get(key << 16 | version)
            if route is None or length < 0:
                header = decode_request_header(frame)
                route = self._route(header)
                if route is None:
                    return _unsupported_api_versions(header)
                client_id, position = header.client_id, header.body_offset
            else:
                position = 10 + length
                client_id = str(frame[10:position], "utf-8")
                if route.is_flexible:
                    if frame[position]:
                        position = decode_request_header(frame).body_offset
                    else:
                        position += 1
                if route.shortcut is not None and self.throttling is None:
                    answered: bytes | ResponseParts | None
                    try:
                        answered = route.shortcut(frame, position, version, correlation_id, self.services)
                    except Exception as error:
                        # A bug. The handler must not run as well: the batch may be stored already.
                        context = Context(self.services, version, client_id, connection, key)
                        response = self.answer_error(route, route.decode(frame, version, position), context, error)
                        answered = encode_response_parts(key, version, correlation_id, response)
                    if answered is not None:
                        route.requests += 1
                        if started:
                            route.observe(monotonic() - started)
                        return answered
            request = route.decode(frame, version, position)
        except MALFORMED as error:
            self.malformed += 1
            raise Disconnect(f"request header: {error}") from None
        except ProtocolError as error:
            self.malformed += 1
            raise Disconnect(str(error)) from None
        route.requests += 1
        context = Context(self.services, version, client_id, connection, key)
        if self.throttling is not None:
            return self.throttling.answer(route, request, context, correlation_id, len(frame), started)
        try:
            response = route.handler(request, context)
        except Exception as error:
            response = self.answer_error(route, request, context, error)
        if response is None:
            encoded = None
        elif type(response) is route.response:
            encoded = encode_response_parts(key, version, correlation_id, response)
        else:
            return Late(self, response, route, request, context, correlation_id, started)
        if started:
            route.observe(monotonic() - started)
        return encoded

    def _route(self, header: RequestHeader) -> Route | None:
        """The route of a request; None for a version of ApiVersions that is not served."""
        key, version = header.api_key, header.api_version
        if (known := self.routes.get(key << 16 | version)) is not None:
            return known
        served = SERVED.get(key)
        if served is None:
            raise ProtocolError(f"{API[key].name} is not supported")
        if version not in served.versions:
            if key == ApiKey.API_VERSIONS:
                return None
            first, last = served.versions[0], served.versions[-1]
            raise ProtocolError(f"{API[key].name} v{version} is not supported; supported are v{first} to v{last}")
        route = self.routes[key << 16 | version] = Route(key, version)
        return route

    def answer_error(self, route: Route, request: Any, context: Context, error: Exception) -> Any:
        """The API's error response. If it has none, the connection is closed."""
        route.errors += 1
        if isinstance(error, Disconnect):
            raise error
        if isinstance(error, KafkaError):
            code, detail = error.code, error.detail
        else:
            # The tracebacks of a bug that a client triggers again and again must not fill the disk.
            if self._failures.allows(monotonic()):
                log.error(
                    "%s v%d from %s (client id %r) failed%s",
                    route.name,
                    route.version,
                    context.client_host,
                    context.client_id,
                    self._failures.suffix,
                    exc_info=error,
                )
            code, detail = ErrorCode.UNKNOWN_SERVER_ERROR, "internal error; see the broker's log"
        if route.api_key == ApiKey.PRODUCE and request.acks == 0:
            # The client expects no response: closing the connection is the only way to report the error.
            raise Disconnect(f"Produce with acks=0 failed: {code.name}: {detail}") from None
        from ottla.broker.handler_support.error_responses import error_response

        response = error_response(route.response, request, route.version, code, detail)
        if response is None:
            raise Disconnect(f"{route.name} failed: {code.name}: {detail}") from None
        return response


class Late:
    """A response in stage two. Await it for the encoded response, or close it to drop it."""

    __slots__ = ("_awaitable", "_context", "_correlation_id", "_dispatcher", "_request", "_route", "_started")

    def __init__(
        self,
        dispatcher: Dispatcher,
        awaitable: Awaitable[Any],
        route: Route,
        request: Any,
        context: Context,
        correlation_id: int,
        started: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._awaitable: Awaitable[Any] | None = awaitable
        """None once it has been awaited."""
        self._route = route
        self._request = request
        self._context = context
        self._correlation_id = correlation_id
        self._started = started

    def __await__(self) -> Generator[Any, None, Response]:
        route, awaitable = self._route, self._awaitable
        assert awaitable is not None, "a response is awaited once"
        self._awaitable = None
        try:
            if route.runs_to_its_end:
                response = yield from asyncio.shield(asyncio.ensure_future(awaitable)).__await__()
            else:
                response = yield from awaitable.__await__()
        except Exception as error:
            response = self._dispatcher.answer_error(route, self._request, self._context, error)
        return self._finish(response)

    def _finish(self, response: Any) -> Response:
        route = self._route
        if self._started:
            route.observe(monotonic() - self._started)
        if response is None:
            return None
        return encode_response_parts(route.api_key, route.version, self._correlation_id, response)

    def close(self) -> None:
        awaitable, self._awaitable = self._awaitable, None
        if awaitable is not None and hasattr(awaitable, "close"):
            awaitable.close()

    # A response that is dropped with its connection, or with a whole simulated broker, is not a forgotten await.
    __del__ = close


def advertised() -> list[tuple[int, int, int]]:
    """(key, lowest version, highest version) of every API, for ApiVersions."""
    return [
        (int(key), ADVERTISED_MIN.get(ApiKey(key), served.versions[0]), served.versions[-1])
        for key, served in sorted(SERVED.items())
    ]


def _unsupported_api_versions(header: RequestHeader) -> Response:
    """The answer to a version of ApiVersions that is not supported: in version 0, which every client can read."""
    from ottla.protocol.messages.api_versions import ApiVersionsResponse

    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in advertised()
        ],
    )
    return encode_response_parts(ApiKey.API_VERSIONS, 0, header.correlation_id, response)
