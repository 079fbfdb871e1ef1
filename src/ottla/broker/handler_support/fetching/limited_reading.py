"""Reading for the Fetch request of a consumer that has a quota: an answer that would exceed it is empty (KIP-219).

The session is not changed then: the consumer repeats the request after the throttle time.
"""

from typing import Any

from ottla.broker.handler_support.fetching.fetch_sessions import FetchSession
from ottla.broker.handler_support.fetching.reading import PartitionData, Reading
from ottla.broker.services import Context
from ottla.errors import KafkaError
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.security.quotas import ClientQuotas, Limits

PARTITION_BYTES = 40
"""The approximate size of a partition without records in a response."""


class LimitedReading(Reading):
    """One fetch of a consumer with a quota."""

    __slots__ = ("_limits", "_quotas", "_read_ahead")

    def __init__(
        self, request: FetchRequest, context: Context, session: FetchSession | None, quotas: ClientQuotas
    ) -> None:
        super().__init__(request, context, session)
        self._quotas = quotas
        self._limits: Limits = quotas.limits(context.principal.name, context.client_id or "")
        self._read_ahead: list[PartitionData | KafkaError] = []
        """What was read, last first; the response is built from it."""
        if self._limits.fetch is not None:
            # A larger response would always exceed the quota.
            self.max_bytes = min(self.max_bytes, quotas.window_share(self._limits.fetch))
            self.min_bytes = min(self.min_bytes, self.max_bytes)

    def respond(self) -> FetchResponse:
        if self._limits.fetch is None and self._limits.request is None:
            return super().respond()
        self._read_ahead = self._read_all()
        name, throttle_ms = self._throttle()
        if throttle_ms:
            self._quotas.count(name, throttle_ms)
            session_id = 0 if self.session is None else self.session.session_id
            return FetchResponse(throttle_time_ms=throttle_ms, session_id=session_id)
        self._read_ahead.reverse()
        return super().respond()

    def _throttle(self) -> tuple[str, int]:
        """The quota that throttles the consumer before this is read, and for how long."""
        quotas, limits = self._quotas, self._limits
        now_ms = self.context.services.monotonic()
        if limits.request is not None and (throttle_ms := quotas.throttle_ms(limits.request, now_ms)):
            return limits.request.name, throttle_ms
        if limits.fetch is None:
            return "", 0
        size = sum(
            PARTITION_BYTES + (0 if isinstance(data, KafkaError) or data.records is None else len(data.records))
            for data in self._read_ahead
        )
        return limits.fetch.name, quotas.admit(limits.fetch, size, now_ms)

    def _read_all(self) -> list[PartitionData | KafkaError]:
        found: list[PartitionData | KafkaError] = []
        remaining, has_data = self.max_bytes, False
        for topic, asked in self.items:
            try:
                data = super()._read(topic, asked, remaining, has_data)
            except KafkaError as error:
                found.append(error)
                continue
            found.append(data)
            size = len(data.records or b"")
            if size:
                remaining, has_data = remaining - size, True
        return found

    def _read(self, topic: Any, asked: Any, remaining: int, has_data: bool) -> PartitionData:
        found = self._read_ahead.pop() if self._read_ahead else super()._read(topic, asked, remaining, has_data)
        if isinstance(found, KafkaError):
            raise found
        return found
