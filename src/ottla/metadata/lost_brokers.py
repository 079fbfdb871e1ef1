"""Brokers that went away a moment ago: which they are, and for how long clients still hear of them. Pure."""

from typing import NamedTuple

from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage

LISTED_SECONDS = 5.0
"""For how long a broker that is gone stays in the list of brokers, whether it died or was stopped. librdkafka (from
2.10 on) removes a broker that is not listed any more together with the partitions that it was about to move to their
new leader. They have no leader then until it hears of the next change: a second later, or several. Listed, it gives up
the partitions first."""

HELD_SECONDS = 0.5
"""For how long an answer about leaders waits for the election after a broker was lost. Clients ask at once: librdkafka
within milliseconds. If they hear of the old leader again, they wait for a second (librdkafka) or their back-off."""


class Lost(NamedTuple):
    """A broker that was lost, and when."""

    registration: BrokerRegistration
    at: float


class LostBrokers:
    """The brokers that went away in the last few seconds."""

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
