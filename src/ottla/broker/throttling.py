"""Client quotas at the edge: measures requests, sets the throttle time and mutes the connection (KIP-219).

The dispatcher passes requests through here only while the cluster has a quota for users or client ids. Brokers are
exempt: throttling them would throttle everybody's replicas.
"""

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

from ottla.broker.dispatch import Dispatcher, Late, Route
from ottla.broker.handler_support.broker_clients import is_broker
from ottla.broker.services import Context
from ottla.broker.settings.listeners import connection_rates
from ottla.clock import monotonic
from ottla.metadata.changes.quota_changes import client_quotas
from ottla.metadata.image import ClusterImage
from ottla.net.server.connection_rates import ConnectionRates
from ottla.net.server.ordered_responses import Response
from ottla.net.server.server import Server
from ottla.protocol.api import BEFORE_AUTHENTICATION, ApiKey
from ottla.protocol.framing import encode_response_parts
from ottla.protocol.messages.fetch import FetchRequest
from ottla.security.quotas import ClientQuotas, connection_rates_of
from ottla.security.resources import CLUSTER, Operation


class Throttling:
    """Answers requests as the dispatcher does, within the quotas of their clients."""

    def __init__(self, dispatcher: Dispatcher, quotas: ClientQuotas) -> None:
        self._dispatcher = dispatcher
        self._quotas = quotas

    def answer(
        self, route: Route, request: Any, context: Context, correlation_id: int, size_bytes: int, started: float
    ) -> Response | Awaitable[Response]:
        """`size_bytes` is the size of the request, `started` when it arrived if latencies are measured."""
        begun = monotonic()
        try:
            response = route.handler(request, context)
        except Exception as error:
            response = self._dispatcher.answer_error(route, request, context, error)
        cost = _Cost(size_bytes, monotonic() - begun)
        if response is None or type(response) is route.response:
            self.throttle(route, request, context, cost, response)
            if started:
                route.observe(monotonic() - started)
            if response is None:
                return None
            return encode_response_parts(route.api_key, route.version, correlation_id, response)
        late = _Throttled(self._dispatcher, _Timed(response, cost), route, request, context, correlation_id, started)
        late.throttling, late.cost = self, cost
        return late

    def throttle(self, route: Route, request: Any, context: Context, cost: "_Cost", response: Any) -> None:
        """Counts a request. Puts the throttle time of its client into the response, and mutes the connection."""
        if is_exempt(route.api_key, request, context):
            return
        quotas = self._quotas
        limits = quotas.limits(context.principal.name, context.client_id or "")
        now_ms = context.services.monotonic()
        # Fetches and metadata changes are counted by their handlers, which have set the throttle time in the response.
        has_field = hasattr(response, "throttle_time_ms")
        name, throttle_ms = "", response.throttle_time_ms if has_field else 0
        if limits.produce is not None and route.api_key == ApiKey.PRODUCE:
            pause_ms = quotas.record(limits.produce, cost.size_bytes, now_ms)
            if pause_ms > throttle_ms:
                name, throttle_ms = limits.produce.name, pause_ms
        if limits.request is not None:
            pause_ms = quotas.record(limits.request, cost.seconds * 100, now_ms)
            if pause_ms > throttle_ms:
                name, throttle_ms = limits.request.name, pause_ms
        if name:
            quotas.count(name, throttle_ms)
        if throttle_ms:
            if has_field:
                response.throttle_time_ms = throttle_ms
            context.connection.mute(throttle_ms)


class QuotaKeeper:
    """Puts the quotas of each image into effect."""

    def __init__(self, dispatcher: Dispatcher, server: Server) -> None:
        self._services = dispatcher.services
        self._dispatcher = dispatcher
        self._server = server
        self.quotas = ClientQuotas(self._services.config)
        self.rates = ConnectionRates(self.quotas.window)

    def apply(self, image: ClusterImage) -> None:
        quotas, rates, services = client_quotas(image), self.rates, self._services
        self.quotas.apply(quotas)
        services.quotas = self.quotas if self.quotas.has_any else None
        if services.quotas is None:
            self._dispatcher.throttling = None
        elif self._dispatcher.throttling is None:
            self._dispatcher.throttling = Throttling(self._dispatcher, self.quotas)
        rates.by_address = connection_rates_of(quotas)
        rates.by_listener = connection_rates(services.config, services.settings.texts(image))
        self._server.rates = rates if rates.has_any else None


class _Cost:
    """What a request has cost so far."""

    __slots__ = ("seconds", "size_bytes")

    def __init__(self, size_bytes: int, seconds: float) -> None:
        self.size_bytes = size_bytes
        self.seconds = seconds
        """The event loop's time for its handler."""


class _Throttled(Late):
    """A response in stage two, of a client that may have a quota."""

    __slots__ = ("cost", "throttling")

    throttling: Throttling
    cost: _Cost

    def _finish(self, response: Any) -> Response:
        self.throttling.throttle(self._route, self._request, self._context, self.cost, response)
        return super()._finish(response)


class _Timed:
    """Awaits something, and adds the time of each of its steps to the cost of a request."""

    __slots__ = ("_awaitable", "_cost")

    def __init__(self, awaitable: Awaitable[Any], cost: _Cost) -> None:
        self._awaitable = awaitable
        self._cost = cost

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._awaitable.__await__()
        step, argument = steps.send, None
        while True:
            begun = monotonic()
            try:
                waits_for = step(argument)
            except StopIteration as stop:
                return stop.value
            finally:
                self._cost.seconds += monotonic() - begun
            try:
                step, argument = steps.send, (yield waits_for)
            except BaseException as thrown:
                step, argument = steps.throw, thrown

    def close(self) -> None:
        if isinstance(self._awaitable, Coroutine):
            self._awaitable.close()


def is_exempt(api_key: int, request: Any, context: Context) -> bool:
    """Whether a request comes from another broker. An authorizer must allow its principal to act for the cluster."""
    if api_key in BEFORE_AUTHENTICATION:
        return True
    if api_key == ApiKey.WRITE_TXN_MARKERS or (
        api_key == ApiKey.FETCH and is_from_follower(request, context.api_version)
    ):
        return context.allows(Operation.CLUSTER_ACTION, CLUSTER, quietly=True)
    return api_key != ApiKey.FETCH and is_broker(context)


def is_from_follower(request: FetchRequest, version: int) -> bool:
    return (request.replica_state.replica_id if version >= 15 else request.replica_id) >= 0
