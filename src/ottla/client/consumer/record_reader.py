"""What poll() and iteration do: handle rebalances, raise errors, wait for fetched records and return them.

A blocking consumer also takes records in its own thread (`take_here`), without a round trip to the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.iteration_buffer import IterationBuffer
from ottla.client.consumer.positions import Positions
from ottla.client.consumer.subscription import Kind, Subscription
from ottla.client.core.arguments import Timeout, as_poll_timeout_ms, check_max_records
from ottla.client.core.interceptors import ConsumerInterceptor, intercept_consume
from ottla.client.core.lag import record_lag
from ottla.client.core.model import Records
from ottla.client.core.network import Network
from ottla.client.core.settings import ConsumerConfig
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.client.group.consumer_coordinator import ConsumerCoordinator

T = TypeVar("T")

ITERATION_POLL_MS = 60_000


class WakeupError(OttlaError):
    """poll() was interrupted by wakeup()."""

    def __init__(self) -> None:
        super().__init__("poll() was woken up")


class RecordReader:
    """Returns the fetched records of one consumer, by poll() or by iteration."""

    def __init__(
        self,
        config: ConsumerConfig,
        network: Network,
        positions: Positions,
        fetcher: Fetcher,
        subscription: Subscription,
        buffer: IterationBuffer,
    ) -> None:
        self.group: ConsumerCoordinator | None = None
        """Set once, if the consumer has a group."""
        self.buffer = buffer
        self.interceptors: Sequence[ConsumerInterceptor] = ()
        """For what poll() and the iteration return."""
        self._config = config
        self._network = network
        self._positions = positions
        self._fetcher = fetcher
        self._subscription = subscription
        self._is_woken = False
        self._is_polling = False

    # --- polling ------------------------------------------------------------------------------------------

    async def poll_records(self, timeout_ms: Timeout, max_records: int | None) -> Records:
        most = self._most_records(max_records)
        taken = await self.poll(
            timeout_ms, lambda: Records(self.buffer.take(most)), lambda: Records(self._fetcher.take(most))
        )
        return taken or Records({})

    async def poll(
        self, timeout_ms: Timeout, take_buffered: Callable[[], T | None], take: Callable[[], T | None]
    ) -> T | None:
        """What `take` returns, as soon as it returns something; None after `timeout_ms`."""
        wait_ms = as_poll_timeout_ms(timeout_ms)
        self._network.start()
        if self._is_polling:
            raise OttlaError("poll() is already running", "Use one consumer per task.")
        self._is_polling = True
        if self.group is not None:
            self.group.membership.enter_poll()
        try:
            return await self._wait_for(wait_ms, take_buffered, take)
        finally:
            self._is_polling = False
            if self.group is not None:
                self.group.membership.leave_poll(self._network.now())

    async def _wait_for(
        self, timeout_ms: int, take_buffered: Callable[[], T | None], take: Callable[[], T | None]
    ) -> T | None:
        if self._subscription.kind is Kind.NONE:
            raise OttlaError(
                "Consumer is not subscribed to any topics or assigned any partitions", "Call subscribe() or assign()."
            )
        self._positions.raise_if_without_offset()
        if self._network.is_about_to_run:
            # Without this, a task that polls and never waits for anything else would keep fetches from being sent.
            await asyncio.sleep(0)
        deadline = self._network.now() + timeout_ms
        if self.group is not None:
            self.group.auto_commit_if_due(self._network.now())
        is_late = False
        while True:
            if self.group is not None and self.group.membership.errors:
                await self.group.explain_errors()
            self.raise_errors()
            if self.group is not None:
                await self.group.handle_rebalance()
                self.raise_errors()
            waiting = self._fetcher.begin_to_take()
            taken = (take_buffered() if self.buffer else None) or take()
            if taken:
                if self._fetcher.waiting != waiting and self._fetcher.is_due:
                    self._network.wake()  # fetch the next records while the user processes these
                return taken
            remaining_ms = deadline - self._network.now()
            if self.has_something_to_do():
                await asyncio.sleep(0)  # let other tasks run; waiting would not wake this one
            else:
                await self._network.until(self.has_something_to_do, max(0, remaining_ms))
            if remaining_ms <= 0 and (is_late or not self.has_something_to_do()):
                return None
            is_late = remaining_ms <= 0

    def take_here(self, take: Callable[[], T | None]) -> T | None:
        """What poll() would return immediately, taken in the thread of a blocking caller.

        None if there is anything to do but take records that were fetched already. Then the caller must poll().
        """
        network, group, fetcher = self._network, self.group, self._fetcher
        with network.lock:
            if not network.is_at_rest or self._is_polling or self._is_woken or self.buffer:
                return None
            if self._positions.errors or self._positions.without_offset():
                return None
            if group is not None:
                now = network.now_elsewhere()
                if group.needs_user or group.commits.is_auto_near(now):
                    return None
                group.membership.leave_poll(now)
            waiting = fetcher.begin_to_take()
            try:
                taken = take()
            except (KafkaError, OttlaError):
                raise
            except BaseException:  # Ctrl-C: nothing reached the caller
                fetcher.take_back()
                self.buffer.ready.clear()
                raise
            if fetcher.waiting != waiting and fetcher.is_due:
                network.wake()  # fetch the next records while the user processes these
            return taken

    def take_records(self, max_records: int | None) -> Records:
        """The records that were fetched already, for `take_here`."""
        return Records(self._fetcher.take(self._most_records(max_records)))

    def _most_records(self, max_records: int | None) -> int:
        return self._config.max_poll_records if max_records is None else check_max_records(max_records)

    # --- iterating ----------------------------------------------------------------------------------------

    async def fill_buffer(self) -> None:
        """Waits for records to iterate over. They count as consumed only when they are yielded."""
        if not self.buffer:
            self.buffer.extend(self._intercepted(await self.poll_records(ITERATION_POLL_MS, None)))
            self.confirm()

    def take_into_buffer(self) -> bool:
        """For `take_here`: puts records to iterate over into the buffer."""
        self.buffer.extend(self._intercepted(self.take_records(None)))
        return bool(self.buffer)

    def _intercepted(self, records: Records) -> Records:
        return intercept_consume(self.interceptors, records) if self.interceptors else records

    def rewind_buffer(self) -> None:
        """Seeks back to the records left over from an iteration that exited early, to return them as columns."""
        for partition, offset in self.consumed().items():
            state = self._positions.states[partition]
            if state.position != offset:
                state.go_back_to(offset)
        self.buffer.clear()

    # --- what reached the user ----------------------------------------------------------------------------

    def confirm(self) -> None:
        """The records taken last have reached the user."""
        self._fetcher.confirm_taken()
        self.buffer.confirm_taken()

    async def give_back(self) -> None:
        """The records taken last have not reached the user: its thread was interrupted. They are returned again."""
        self._fetcher.take_back()
        self.buffer.take_back()

    def consumed(self) -> dict[TopicPartition, int]:
        """The offset after the last record that poll() or the iteration has returned, by partition."""
        states = self._positions.states
        consumed = {partition: state.position for partition, state in states.items() if state.position is not None}
        for topic, partition, offset, *_ in reversed(list(self.buffer)):
            if (topic, partition) in consumed:
                consumed[TopicPartition(topic, partition)] = offset
        return consumed

    def lags(self) -> dict[TopicPartition, int]:
        """The lag of each partition whose position and end are known."""
        states, committed_only = self._positions.states, self._config.isolation_level == "read_committed"
        ends = {p: s.last_stable_offset if committed_only else s.high_watermark for p, s in states.items()}
        return {p: record_lag(at, ends[p]) for p, at in self.consumed().items() if ends[p] >= 0}

    # --- interruptions ------------------------------------------------------------------------------------

    def wake_up(self) -> None:
        self._is_woken = True
        self._network.wake()

    def has_something_to_do(self) -> bool:
        if self.group is not None and self.group.needs_user:
            return True
        return self._is_woken or bool(self._positions.errors) or self._fetcher.has_records

    def raise_errors(self) -> None:
        if self._is_woken:
            self._is_woken = False
            raise WakeupError()
        if self._positions.errors:
            raise self._positions.take_error()
        if self.group is not None:
            self.group.raise_errors()
