"""A broker's data side without sockets: real logs, images, replicas and handlers on a simulated loop.

Tests need no `await`: each call runs the loop as far as needed, and time passes only by `wait`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ottla.broker.dispatch import handler_for
from ottla.broker.handler_support.fetching.fetch_sessions import FetchSessions
from ottla.broker.services import Context, Services
from ottla.broker.settings.config import BrokerConfig
from ottla.config import parse
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.log_directory import LogDirectory
from ottla.log.partition_log import Origin, PartitionLog
from ottla.log.segments.file_records import FileRecords
from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage, TopicImage
from ottla.net.server.connection_state import READING, State
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.records.record_batch import Record, build_batch, control_batch, iter_batches, read_records
from ottla.protocol.schema import Message
from ottla.replication.config import ReplicaConfig
from ottla.replication.replica import Replica
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.waiting import PartitionWaits
from ottla.security.principal import ANONYMOUS, Principal
from ottla.testing.sim_loop import SimLoop
from ottla.types import Endpoint, TopicPartition

LISTENER = "PLAINTEXT"


def topic_id_of(name: str, generation: int = 0) -> bytes:
    """A predictable id; a recreated topic gets another."""
    return name.encode()[:12].ljust(12, b"_") + generation.to_bytes(4, "big")


def batch_of(*values: bytes | str, timestamp: int = 1_700_000_000_000, **details: Any) -> bytes:
    """A batch with one record for each value."""
    rows = [(timestamp, None, v.encode() if isinstance(v, str) else v, ()) for v in values]
    return build_batch(rows, **details)


@dataclass(eq=False)
class Peer:
    """A client's connection, as far as handlers look at it."""

    client_host: str = "/127.0.0.1"
    listener: str = LISTENER
    state: State = READING
    principal: Principal = ANONYMOUS


class DataWorld:
    """Broker 0 of a cluster whose image the test writes itself."""

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk | None = None,
        loop: SimLoop | None = None,
        config: ReplicaConfig | None = None,
        broker_config: BrokerConfig | None = None,
        session_slots: int = 1000,
        image: ClusterImage | None = None,
    ) -> None:
        self.directory = directory
        self.loop = loop or SimLoop()
        self.clock = self.loop.clock
        self.config = config or ReplicaConfig()
        self.broker_config = broker_config or BrokerConfig()
        self.session_slots = session_slots
        self.connection = Peer()
        self.image = image or ClusterImage(
            cluster_id="world",
            brokers={
                broker_id: BrokerRegistration(broker_id, 1, {LISTENER: Endpoint(f"broker{broker_id}", 9092)}, "rack")
                for broker_id in (0, 1, 2)
            },
        )
        self.disk = disk or Disk()
        self.start()

    # -- start and stop --

    def start(self) -> None:
        self.log_directory = LogDirectory.open(
            self.directory, disk=self.disk, clock=self.clock, monotonic=self.loop.monotonic
        )
        self.log_directory.load(self._config_of)
        self.replicas = ReplicaManager(
            0, self.log_directory, topic_config=_topic_config, config=self.config, clock=self.clock
        )
        self.services = Services(
            broker_id=0,
            config=self.broker_config,
            settings=None,  # type: ignore[arg-type]
            metadata=self,  # type: ignore[arg-type]
            replicas=self.replicas,
            sessions=FetchSessions(self.session_slots),
            clock=self.clock,
            monotonic=self.loop.monotonic,
        )
        self.replicas.apply(self.image)
        self.run(_begin(self.replicas))

    def stop(self) -> None:
        self.run(self.replicas.stop())

    def restart(self) -> None:
        """Stops and starts; every partition gets a new leader epoch, as after any restart."""
        self.stop()
        self.change_partitions(lambda p: p._replace(leader_epoch=p.leader_epoch + 1))
        self.start()

    def _config_of(self, topic: str) -> TopicConfig:
        known = self.image.topics.get(topic)
        return TopicConfig() if known is None else _topic_config(known)

    # -- time --

    def run(self, awaitable: Any) -> Any:
        """The result of an awaitable."""

        async def wait_for_it() -> Any:
            return await awaitable

        return self.loop.run_until_complete(wait_for_it())

    def wait(self, ms: float = 0) -> None:
        """Lets time pass and fires what is due."""
        self.loop.run_until_complete(asyncio.sleep(ms / 1000))
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))

    # -- the image --

    def publish(self, image: ClusterImage) -> None:
        self.image = replace(image, version=self.image.version + 1)
        unfinished = self.replicas.apply(self.image)
        if unfinished is not None:
            self.run(unfinished)

    def topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        replicas: tuple[int, ...] = (0,),
        leader: int | None = None,
        isr: tuple[int, ...] | None = None,
        leader_epoch: int = 0,
        generation: int = 0,
    ) -> bytes:
        """Creates or changes a topic; its id."""
        topic_id = topic_id_of(name, generation)
        leader = replicas[0] if leader is None else leader
        placed = tuple(
            PartitionImage(index, leader, leader_epoch, 0, replicas, replicas if isr is None else isr)
            for index in range(partitions)
        )
        topic = TopicImage(name, topic_id, placed, dict(configs or {}))
        self.publish(
            replace(
                self.image,
                topics=dict(self.image.topics) | {name: topic},
                topic_names=dict(self.image.topic_names) | {topic_id: name},
            )
        )
        return topic_id

    def delete_topic(self, name: str) -> None:
        topics, names = dict(self.image.topics), dict(self.image.topic_names)
        del names[topics.pop(name).topic_id]
        self.publish(replace(self.image, topics=topics, topic_names=names))

    def change_partitions(self, change: Any, name: str | None = None) -> None:
        """Puts every partition (of one topic) through `change`; published if the broker runs."""
        topics = {
            topic.name: topic
            if name not in (None, topic.name)
            else topic._replace(
                partitions=tuple(change(p._replace(partition_epoch=p.partition_epoch + 1)) for p in topic.partitions)
            )
            for topic in self.image.topics.values()
        }
        self.publish(replace(self.image, topics=topics))

    # -- requests --

    def begin(self, request: Message, version: int, client_id: str = "test", connection: Peer | None = None) -> Any:
        """Gives a request to its handler as if it came over the wire: the response, None, or an awaitable of either."""

        async def handle() -> Any:
            # Boxed, so that awaiting the handler does not await what it returned.
            return (self.handle(request, version, client_id, connection),)

        return self.loop.run_until_complete(handle())[0]

    def handle(self, request: Message, version: int, client_id: str = "test", connection: Peer | None = None) -> Any:
        """Like `begin`, from within the loop: several requests can come in the same turn."""
        decoded = type(request).decode(request.encode(version), version)
        peer: Any = connection or self.connection
        return handler_for(request.api_key)(decoded, Context(self.services, version, client_id, peer, request.api_key))

    def ask(self, request: Message, version: int, client_id: str = "test") -> Any:
        """The response to a request, decoded from its bytes in that version."""
        answer = self.begin(request, version, client_id)
        if answer is not None and not isinstance(answer, Message):
            answer = self.run(answer)
        return None if answer is None else over_the_wire(answer, version)

    def asks(self, request: Message, version: int, connection: Peer | None = None) -> "Asked":
        """A request that may be answered later."""
        answer = self.begin(request, version, connection=connection)
        return Asked(self, answer, version)

    # -- shortcuts --

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        return self.replica(topic, partition).log

    def replica(self, topic: str, partition: int = 0) -> Replica:
        replica = self.replicas.find(topic, partition)
        assert replica is not None
        return replica

    def append(self, topic: str, *values: bytes | str, partition: int = 0, **details: Any) -> None:
        """Appends a batch without going through Produce."""

        async def append() -> None:
            self.replicas.append(TopicPartition(topic, partition), batch_of(*values, **details), acks=1)

        self.loop.run_until_complete(append())

    def produce(
        self,
        topic: str,
        *values: bytes | str,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
        **details: Any,
    ) -> ProduceResponse.PartitionProduceResponse:
        """Produces one batch to one partition; its part of the answer."""
        request = produce_request({(topic, partition): batch_of(*values, **details)}, acks=acks)
        answer: ProduceResponse.PartitionProduceResponse = only_partition(self.ask(request, version))
        return answer

    def close(self) -> None:
        self.loop.close()


class Asked:
    """A request in flight."""

    def __init__(self, world: DataWorld, answer: Any, version: int) -> None:
        self._world = world
        self._version = version
        self.was_immediate = answer is None or isinstance(answer, Message)
        if self.was_immediate:
            self._task: asyncio.Future[Any] = world.loop.create_future()
            self._task.set_result(answer)
        else:

            async def wait_for_it() -> Any:
                return await answer

            self._task = world.loop.create_task(wait_for_it())
            world.wait()

    @property
    def is_answered(self) -> bool:
        return self._task.done()

    def answer(self) -> Any:
        """Waits for the response."""
        answer = self._world.loop.run_until_complete(self._task)
        return None if answer is None else over_the_wire(answer, self._version)

    def hang_up(self) -> None:
        """The client disconnects before the response."""
        self._task.cancel()
        self._world.wait()


def over_the_wire(message: Message, version: int) -> Any:
    """The message as its receiver decodes it. Records that are still in their file are read now."""
    chunks: list[Any] = []
    message.encode_chunks(chunks, version)
    encoded = b"".join(part.read(0, len(part)) if isinstance(part, FileRecords) else part for part in chunks)
    return type(message).decode(encoded, version)


def produce_request(
    batches: Mapping[Any, bytes | None],
    *,
    acks: int = -1,
    timeout_ms: int = 1_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One topic entry for each batch, named by id where the key is bytes."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        transactional_id=transactional_id,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic if isinstance(topic, str) else "",
                topic_id=topic if isinstance(topic, bytes) else bytes(16),
                partition_data=[ProduceRequest.PartitionProduceData(index=index, records=records)],
            )
            for (topic, index), records in batches.items()
        ],
    )


def fetch_request(
    offsets: Mapping[Any, int],
    *,
    partition_max_bytes: int = 1 << 20,
    partition: Mapping[str, Any] | None = None,
    **details: Any,
) -> FetchRequest:
    """Asks for each partition from an offset on; `partition` sets further fields of every one of them."""
    return FetchRequest(
        **{"max_wait_ms": 500, "min_bytes": 1} | details,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic if isinstance(topic, str) else "",
                topic_id=topic if isinstance(topic, bytes) else bytes(16),
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        **(partition or {}),
                    )
                ],
            )
            for (topic, index), offset in offsets.items()
        ],
    )


def only_partition(response: Any) -> Any:
    """The only partition in a response."""
    topics = response.responses if hasattr(response, "responses") else response.topics
    (topic,) = topics
    (partition,) = topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    return partition


class Transactions:
    """Two producers that write to one partition, in transactions and outside."""

    def __init__(self, world: DataWorld) -> None:
        self.world = world
        self.sequences: dict[int, int] = {}

    def writes(self, producer_id: int, value: str) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        self.world.append(
            "orders", value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )

    def ends(self, producer_id: int, *, commit: bool) -> None:
        marker = control_batch(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1
        )

        async def append() -> None:
            self.world.replicas.append(TopicPartition("orders", 0), marker, acks=-1, origin=Origin.COORDINATOR)

        self.world.run(append())


def records_in(data: Any) -> list[Record]:
    """The records of a fetched partition."""
    found = []
    for position, header in iter_batches(data.records or b""):
        found += read_records(data.records, position, header)
    return found


def values_in(data: Any) -> list[str]:
    return [(record.value or b"").decode() for record in records_in(data)]


def _topic_config(topic: TopicImage) -> TopicConfig:
    return parse(TopicConfig, topic.configs)


async def _begin(replicas: ReplicaManager) -> None:
    replicas.start()


def fetch_count(waits: PartitionWaits | None) -> int:
    """How many fetches wait for records of a partition."""
    return 0 if waits is None else sum(map(len, waits._fetches))  # noqa: SLF001 (only tests count them)
