"""Which replica a consumer should read from: one in its own rack, if there is one (KIP-392). Pure."""

from collections.abc import Mapping

from ottla.metadata.image import BrokerRegistration
from ottla.replication.replica import Replica

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_ONLY = "org.apache.kafka.common.replica.LeaderSelector"
LEADER = -1


def is_known_selector(name: str) -> bool:
    """Whether this is a selector, by its class name in Apache Kafka or by the last part of it."""
    return name in (RACK_AWARE, LEADER_ONLY, _short(RACK_AWARE), _short(LEADER_ONLY))


def is_rack_aware(name: str | None) -> bool:
    return name is not None and _short(name) == _short(RACK_AWARE)


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def preferred_replica(replica: Replica, offset: int, rack: str, brokers: Mapping[int, BrokerRegistration]) -> int:
    """The follower from which a consumer in `rack` should read at `offset`; -1 for this broker, the leader.

    It must be in sync and have the offset. The one with the most records is preferred.
    """
    own = brokers.get(replica.broker_id)
    if own is not None and own.rack == rack:
        return LEADER
    best, best_end = LEADER, -1
    for broker_id, follower in replica.followers.items():
        broker = brokers.get(broker_id)
        if (
            broker is not None
            and broker.rack == rack
            and not broker.is_leaving
            and broker_id in replica.isr
            and follower.log_start_offset <= offset <= follower.log_end_offset
            and follower.log_end_offset > best_end
        ):
            best, best_end = broker_id, follower.log_end_offset
    return best
