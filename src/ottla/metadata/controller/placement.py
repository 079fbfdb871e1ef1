"""Replica placement for new partitions: round-robin over brokers, spread over racks, or as requested. Pure."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from ottla.errors import ErrorCode, KafkaError


def place_replicas(
    brokers: Mapping[int, str | None],
    count: int,
    replication_factor: int,
    *,
    start: int = 0,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """The replicas of `count` partitions from `first_partition` on, each with its preferred leader first.

    `brokers` maps the live brokers to their racks. `start` is the position of partition 0 in the circle of brokers, so
    that topics with few partitions do not all start at the first broker.

    >>> place_replicas({0: None, 1: None, 2: None}, 4, 2)
    [(0, 1), (1, 2), (2, 0), (0, 2)]
    >>> place_replicas({0: "a", 1: "a", 2: "b", 3: "b"}, 2, 2)
    [(0, 2), (2, 1)]
    """
    if not 1 <= replication_factor <= len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): "
            f"only {len(brokers)} broker(s) are registered.",
        )
    circle = _alternate_racks(brokers)
    rack_count = len(set(brokers.values()))
    placed = []
    for partition in range(first_partition, first_partition + count):
        # Each lap around the circle pairs leaders with different followers than the previous lap.
        lap, position = divmod(partition, len(circle))
        leader = circle[(start + position) % len(circle)]
        placed.append(_replicas_after(leader, lap, circle, brokers, rack_count, replication_factor))
    return placed


def check_replicas(replicas: Sequence[int], *registered: Container[int]) -> None:
    """Raises unless a requested list of replicas has at least one broker, only registered ones, and each once."""
    if not replicas:
        raise invalid_assignment("The manual partition assignment includes an empty replica list.")
    for broker_id, times in Counter(replicas).items():
        if not any(broker_id in brokers for brokers in registered):
            raise invalid_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if times > 1:
            raise invalid_assignment(f"The manual partition assignment includes the broker {broker_id} more than once.")


def invalid_assignment(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)


def position_of(broker_id: int, brokers: Mapping[int, str | None]) -> int:
    """A broker's position in the circle, to continue an earlier placement; 0 if the broker is gone."""
    circle = _alternate_racks(brokers)
    return circle.index(broker_id) if broker_id in circle else 0


def _replicas_after(
    leader: int, lap: int, circle: list[int], brokers: Mapping[int, str | None], rack_count: int, wanted: int
) -> tuple[int, ...]:
    at = circle.index(leader)
    others = circle[at + 1 :] + circle[:at]
    shift = lap % len(others) if others else 0
    others = others[shift:] + others[:shift]
    chosen = [leader]
    racks = {brokers[leader]}
    while len(chosen) < wanted:
        # Use a rack twice only after every rack was used once, or has no broker left.
        free = [broker for broker in others if broker not in chosen]
        broker = next((b for b in free if brokers[b] not in racks), free[0])
        racks = racks | {brokers[broker]} if len(racks) < rack_count else {brokers[broker]}
        chosen.append(broker)
    return tuple(chosen)


def _alternate_racks(brokers: Mapping[int, str | None]) -> list[int]:
    """All brokers ordered by id, alternating between racks."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(brokers):
        by_rack.setdefault(brokers[broker_id] or "", []).append(broker_id)
    racks = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max((len(rack) for rack in racks), default=0)
    return [rack[turn] for turn in range(longest) for rack in racks if turn < len(rack)]
