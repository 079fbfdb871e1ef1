"""The current leader of a partition, for clients that asked the wrong broker (KIP-951). Pure."""

from typing import NamedTuple

from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_LEADER
from ottla.types import TopicPartition


class CurrentLeader(NamedTuple):
    """A partition's leader and its address on one listener; NO_LEADER and no address if unknown."""

    leader_id: int
    leader_epoch: int
    host: str = ""
    port: int = 0
    rack: str | None = None

    @property
    def is_reachable(self) -> bool:
        return bool(self.host)


def current_leader(image: ClusterImage, topic: str, partition: int, listener: str) -> CurrentLeader:
    found = image.find_partition(TopicPartition(topic, partition))
    if found is None:
        return CurrentLeader(NO_LEADER, -1)
    broker = image.brokers.get(found.leader)
    endpoint = None if broker is None else broker.endpoints.get(listener)
    if broker is None or endpoint is None:
        return CurrentLeader(found.leader, found.leader_epoch)
    return CurrentLeader(found.leader, found.leader_epoch, endpoint.host, endpoint.port, broker.rack)
