"""Which faults happen when: random, but determined by the seed alone. Pure."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.errors import OttlaError

KILL, PAUSE, PARTITION, CLOCK = "kill", "pause", "partition", "clock"
FAULTS = (KILL, PAUSE, PARTITION, CLOCK)

FROM_BROKERS, FROM_CLIENTS, FROM_ALL, FROM_STORE = "brokers", "clients", "everybody", "the metadata store"

FAULT_S = (1.0, 7.0)
"""How long an episode takes. Some are shorter than a broker's session, some longer."""
CALM_S = (1.0, 5.0)
SHIFTS_MS = (-7_200_000, -600_000, -61_000, -5_000, -1_000, 1_000, 5_000, 61_000, 600_000, 7_200_000)


class Injection(NamedTuple):
    """One fault of one broker."""

    kind: str
    broker: int
    cut_off_from: str = ""
    shift_ms: int = 0

    def __str__(self) -> str:
        if self.kind == PARTITION:
            return f"broker {self.broker} is cut off from {self.cut_off_from}"
        if self.kind == CLOCK:
            return f"the clock of broker {self.broker} is {self.shift_ms / 1000:+g} s off"
        return f"broker {self.broker} is {'killed (SIGKILL)' if self.kind == KILL else 'paused (SIGSTOP)'}"


class Episode(NamedTuple):
    """Faults that begin and end together, and the calm time that follows."""

    injections: tuple[Injection, ...]
    seconds: float
    calm_s: float


def parse_faults(text: str) -> tuple[str, ...]:
    """
    >>> parse_faults("kill, clock")
    ('kill', 'clock')
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in FAULTS:
            raise OttlaError(f"unknown fault {name!r}", f"choose from {', '.join(FAULTS)}")
    return names


def episodes(seed: int, kinds: Sequence[str], brokers: int, *, has_remote_store: bool = False) -> Iterator[Episode]:
    """Endless. Most episodes hit one broker, a quarter two at once, each with any kind of fault."""
    rng = random.Random(f"{seed} faults")
    sides = [FROM_BROKERS, FROM_CLIENTS, FROM_ALL] + [FROM_STORE] * has_remote_store
    while True:
        count = 2 if brokers > 1 and rng.random() < 0.25 else 1
        struck = rng.sample(range(brokers), count)
        injections = []
        for broker in struck:
            kind = rng.choice(list(kinds))
            injections.append(
                Injection(
                    kind,
                    broker,
                    cut_off_from=rng.choice(sides if brokers > 1 else [FROM_CLIENTS]) if kind == PARTITION else "",
                    shift_ms=rng.choice(SHIFTS_MS) if kind == CLOCK else 0,
                )
            )
        yield Episode(tuple(injections), rng.uniform(*FAULT_S), rng.uniform(*CALM_S))
