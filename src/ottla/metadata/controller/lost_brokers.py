"""Brokers that were lost a moment ago: how long they stay listed, and elections to wait for. Pure."""

from typing import NamedTuple

from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage

LISTED_SECONDS = 5.0
"""How long a lost broker stays in the list of brokers, whether it died or was stopped. librdkafka (from 2.10 on)
removes a broker that is no longer listed together with the partitions that it was about to move to their new leader:
they have no leader until its next metadata refresh, seconds later. If the broker is still listed, librdkafka moves the
partitions first."""

HELD_SECONDS = 0.5
"""How long a response about leaders waits for the election after a broker was lost. Clients ask at once: librdkafka
within milliseconds. If they get the old leader again, they wait for a second (librdkafka) or their back-off."""


class Lost(NamedTuple):
    """A broker that was lost, and when."""

    registration: BrokerRegistration
    at: float


class LostBrokers:
    """The brokers that were lost in the last few seconds."""

    def __init__(self) -> None:
        self._lost: dict[int, Lost] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._lost)

    def note(self, before: ClusterImage, image: ClusterImage, now: float) -> None:
        """Compares an image with the one before it."""
        if before.brokers is image.brokers:
            return
        for broker_id, registration in before.brokers.items():
            if broker_id not in image.brokers:
                self._lost[broker_id] = Lost(registration, now)
        for broker_id in image.brokers:
            self._lost.pop(broker_id, None)

    def listed(self, now: float) -> list[BrokerRegistration]:
        """Those that clients still find in the list of brokers."""
        if not self._lost:
            return []
        self._lost = {id_: lost for id_, lost in self._lost.items() if now - lost.at < LISTED_SECONDS}
        return [lost.registration for lost in self._lost.values()]

    def awaits_election(self, image: ClusterImage, partition: PartitionImage, now: float) -> bool:
        """Whether the leader of a partition was lost a moment ago, and another replica can take over."""
        lost = self._lost.get(partition.leader)
        return (
            lost is not None
            and now - lost.at < HELD_SECONDS
            and any(replica in image.brokers for replica in partition.isr)
        )
