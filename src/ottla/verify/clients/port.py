"""The interface of a Kafka client library for the workloads. Pure."""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

Place = tuple[str, int]
"""(topic, partition)."""
OnDelivery = Callable[[int, str], None]
"""Called with (offset, ""), or (-1, why the record was not acknowledged)."""
OnAssignment = Callable[[set[Place]], None]
"""Called inside poll() with all partitions that the member owns now."""


class Received(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes


class Remedy(enum.Enum):
    """What to do after an error."""

    RETRY = "call again"
    ABORT = "abort the transaction"
    RESTART = "use a new client"


class ClientError(Exception):
    """A call failed."""

    def __init__(self, text: str, remedy: Remedy) -> None:
        super().__init__(text)
        self.remedy = remedy


class ProducerPort(Protocol):
    """An idempotent producer with acks=all, or a transactional one."""

    def send(self, topic: str, partition: int, value: bytes, on_delivery: OnDelivery) -> None: ...
    def serve(self, seconds: float) -> None:
        """Lets deliveries be reported, for at most this time."""

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def add_offsets(self, offsets: Mapping[Place, int], consumer: "ConsumerPort") -> None:
        """Uses the consumer's membership at its last poll(): it may have lost its partitions since (KIP-447)."""

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def crash(self) -> None:
        """Ends it immediately: nothing is flushed or aborted."""


class ConsumerPort(Protocol):
    """A consumer without automatic commits."""

    def assign(self, places: Iterable[Place]) -> None:
        """Reads these partitions from the beginning."""

    def subscribe(self, topic: str, on_assignment: OnAssignment) -> None: ...
    def poll(self, seconds: float, most: int) -> list[Received]: ...
    def seek(self, offsets: Mapping[Place, int]) -> None: ...
    def commit(self, offsets: Mapping[Place, int]) -> None: ...
    def committed(self, places: Iterable[Place]) -> dict[Place, int]:
        """-1 for partitions without a committed offset."""

    def generation(self) -> int:
        """The generation of the group; -1 if the library does not report it."""

    def is_at_end(self, ends: Mapping[Place, int]) -> bool:
        """Whether everything below these offsets was received. For consumers with assigned partitions."""

    def close(self) -> None: ...


class ClientLibrary(Protocol):
    """Creates clients, with the settings of the run (brokers, security)."""

    name: str

    def producer(self, client_id: str, transactional_id: str = "") -> ProducerPort: ...
    def consumer(self, client_id: str, isolation: str, group: str = "") -> ConsumerPort: ...


TRANSACTION_TIMEOUT_MS = 10_000
DELIVERY_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 4_000
API_TIMEOUT_MS = 12_000
SESSION_TIMEOUT_MS = 6_000
"""The lowest that brokers accept by default (group.min.session.timeout.ms)."""
HEARTBEAT_MS = 1_000
MAX_POLL_INTERVAL_MS = 6_500
