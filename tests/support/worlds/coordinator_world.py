"""A broker's coordinators on real logs and a simulated loop: requests go through handlers, in bytes.

`DataWorld` with the group coordinator in it. Time passes by `wait` only.
"""

import asyncio
import json
from dataclasses import replace
from typing import Any, Self

from ottla.broker.coordinators import Coordinators
from ottla.broker.dispatch import Dispatcher
from ottla.broker.settings.config import Settings, load_config
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.log.partition_log import Origin
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.records.record_batch import iter_batches, read_records
from ottla.protocol.schema import Message
from ottla.types import OFFSETS_TOPIC, REBALANCES_TOPIC, TopicPartition
from tests.support import fresh_load
from tests.support.worlds.data_world import DataWorld, Peer, topic_id_of


class CoordinatorWorld(DataWorld):
    """Broker 0, which coordinates groups once `__consumer_offsets` exists."""

    def __init__(self, directory: str, *, settings: dict[str, str] | None = None, **options: Any) -> None:
        config = load_config({"group.initial.rebalance.delay.ms": "0", **(settings or {})})
        self.created: list[str] = []
        """Topics that were created automatically, in order."""
        self.coordinators: Coordinators | None = None
        super().__init__(directory, broker_config=config, **options)

    def start(self) -> None:
        super().start()
        self.services.settings = Settings(self.broker_config)
        self.coordinators = Coordinators(
            self.broker_config,
            metadata=self,  # type: ignore[arg-type]
            replicas=self.replicas,
            clock=self.clock,
        )
        self.services.coordinators = self.coordinators
        self.dispatcher = Dispatcher(self.services)
        self._on_loop(self.coordinators.apply, self.image)
        self.wait()

    def stop(self) -> None:
        assert self.coordinators is not None
        self.run(self.coordinators.stop())
        super().stop()

    def _on_loop(self, function: Any, *arguments: Any) -> Any:
        """Calls a function that needs a running loop."""

        async def call() -> Any:
            return function(*arguments)

        return self.loop.run_until_complete(call())

    # -- the cluster --

    def publish(self, image: ClusterImage) -> None:
        self._on_loop(self._publish, image)
        self.wait()

    def _publish(self, image: ClusterImage) -> None:
        self.image = replace(image, version=self.image.version + 1)
        self.replicas.apply(self.image)
        if self.coordinators is not None:
            self.coordinators.apply(self.image)

    def awaits_elections(self, topics: Any) -> bool:
        return False

    @property
    def changes(self) -> Self:
        """The world is its own metadata follower, and makes the changes itself."""
        return self

    async def ensure_topics(self, topics: Any) -> list[Any]:
        """As `ClusterChanges` does: a second request finds the topic created."""
        await asyncio.sleep(0.01)
        for topic in topics:
            if topic.name in self.image.topics:
                continue
            self.created.append(topic.name)
            placed = tuple(PartitionImage(i, 0, 0, 0, (0,), (0,)) for i in range(topic.partitions))
            made = TopicImage(topic.name, topic_id_of(topic.name), placed, dict(topic.configs))
            self._publish(
                replace(
                    self.image,
                    topics={**self.image.topics, topic.name: made},
                    topic_names={**self.image.topic_names, made.topic_id: topic.name},
                )
            )
        return []

    def offsets_topic(self, **details: Any) -> None:
        """Creates `__consumer_offsets`, by default with one partition."""
        configs = {"cleanup.policy": "compact", **details.pop("configs", {})}
        self.topic(OFFSETS_TOPIC, **{"partitions": 1, **details}, configs=configs)

    # -- requests --

    def begin(self, request: Message, version: int, client_id: str = "test", connection: Peer | None = None) -> Any:
        """Sends a frame through the dispatcher: the response, or an awaitable of it."""
        frame = encode_request(request.api_key, version, 1, client_id, request)[4:]

        def read(answer: Any) -> Any:
            return decode_response(request.api_key, version, bytes(answer)[4:])[1]

        async def later(awaitable: Any) -> Any:
            return read(await awaitable)

        peer: Any = connection or self.connection
        answer = self._on_loop(lambda: (self.dispatcher(frame, peer),))[0]
        return read(answer) if isinstance(answer, bytes | bytearray) else later(answer)

    # -- looking inside --

    @property
    def groups(self) -> CoordinatorRuntime[GroupShard]:
        assert self.coordinators is not None
        return self.coordinators.groups

    def shard(self, key: str = "g") -> GroupShard:
        return self.groups.shard(key)

    def append_raw(self, batch: bytes, partition: int = 0) -> None:
        """Appends a batch to the coordinator's log without the coordinator, which knows it only after a load."""
        assert self.coordinators is not None
        fresh_load.exempt(self.coordinators)
        self.call(
            lambda: self.replicas.append(
                TopicPartition(OFFSETS_TOPIC, partition), batch, acks=1, origin=Origin.COORDINATOR
            )
        )

    def call(self, function: Any, *arguments: Any) -> Any:
        return self._on_loop(function, *arguments)

    def stored(self, topic: str = OFFSETS_TOPIC, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) of every record in a partition."""
        log = self.log(topic, partition)
        offset, found = log.log_start_offset, []
        # One read returns at most one segment.
        while offset < log.log_end_offset and (data := log.read(offset, 1 << 24, upper_bound=log.log_end_offset)):
            for position, header in iter_batches(data):
                found += [(record.key, record.value) for record in read_records(data, position, header)]
                offset = header.next_offset
        return found

    def history(self) -> list[dict[str, Any]]:
        """The rebalance history so far."""
        if REBALANCES_TOPIC not in self.image.topics:
            return []
        return [json.loads(value or b"") for _, value in self.stored(REBALANCES_TOPIC)]
