"""Random valid histories have no anomaly, and an injected anomaly is always found. Spec: R2."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.verify.anomalies import Kind
from ottla.verify.checks.checker import check
from ottla.verify.history import (
    COMMITTED,
    FAIL,
    OK,
    POLL,
    SEND,
    TRANSACTION,
    UNCOMMITTED,
    UNKNOWN,
    History,
    Operation,
    Read,
    Sent,
)
from tests.support.histories import final_read

PARTITIONS = ("t-0", "t-1", "t-2")


@dataclass
class Model:
    """A correct log: partitions of records and markers, written and read by clients that remember what they see."""

    rng: random.Random
    history: list[Operation] = field(default_factory=list)
    visible: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {p: [] for p in PARTITIONS})
    """(offset, value) that read_committed consumers receive."""
    stored: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {p: [] for p in PARTITIONS})
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    positions: dict[tuple[str, int, str], int] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    now: int = 0
    values: int = 0

    def run(self, steps: int) -> History:
        for _ in range(steps):
            client = f"c{self.rng.randrange(4)}"
            self.rng.choice((self.send, self.transact, self.transact, self.poll))(client)
            if self.rng.random() < 0.05:
                self.sessions[client] = self.sessions.get(client, 0) + 1
        # The log continues, so that nothing is at its end.
        for partition in PARTITIONS:
            self.append(partition, self.next_value(), is_visible=True)
            self.append(partition, self.next_value(), is_visible=True)
        return History([*self.history, final_read(self.visible), final_read(self.stored, UNCOMMITTED)])

    def next_value(self) -> int:
        self.values += 1
        return self.values

    def tick(self) -> int:
        self.now += 10
        return self.now

    def append(self, partition: str, value: int, *, is_visible: bool) -> int:
        offset = self.ends[partition]
        self.ends[partition] += 1
        self.stored[partition].append((offset, value))
        if is_visible:
            self.visible[partition].append((offset, value))
        return offset

    def send(self, client: str) -> None:
        partition, value = self.rng.choice(PARTITIONS), self.next_value()
        outcome = self.rng.choice((OK, OK, FAIL, UNKNOWN))
        operation = Operation(client, SEND, outcome=outcome, started_us=self.tick(), session=self.session(client))
        offset = -1
        if outcome == OK or (outcome == UNKNOWN and self.rng.random() < 0.5):
            offset = self.append(partition, value, is_visible=True)
        operation.sent.append(Sent(partition, value, offset if outcome == OK else -1))
        operation.ended_us = self.tick()
        self.history.append(operation)

    def transact(self, client: str) -> None:
        outcome = self.rng.choice((OK, OK, FAIL, UNKNOWN))
        operation = Operation(
            client, TRANSACTION, outcome=outcome, started_us=self.tick(), session=self.session(client)
        )
        if self.rng.random() < 0.5:
            operation.polled += self.receive(client, COMMITTED)
        is_committed = outcome == OK or (outcome == UNKNOWN and self.rng.random() < 0.5)
        for _ in range(self.rng.randint(1, 4)):
            partition, value = self.rng.choice(PARTITIONS), self.next_value()
            offset = self.append(partition, value, is_visible=is_committed)
            operation.sent.append(Sent(partition, value, offset))
        operation.end_started_us, operation.ended_us = self.tick(), self.tick()
        for partition in {sent.partition for sent in operation.sent}:
            self.ends[partition] += 1  # the marker
        self.history.append(operation)

    def poll(self, client: str) -> None:
        isolation = self.rng.choice((COMMITTED, UNCOMMITTED))
        client = f"{client}-{isolation}"
        started = self.tick()
        polled = self.receive(client, isolation)
        if polled:
            self.history.append(
                Operation(client, POLL, polled=polled, outcome=OK, started_us=started, ended_us=self.tick(),
                          session=self.session(client), isolation=isolation)
            )  # fmt: skip

    def receive(self, client: str, isolation: str) -> list[Read]:
        found = []
        source = self.visible if isolation == COMMITTED else self.stored
        for partition in PARTITIONS:
            key = (client, self.session(client), partition)
            position = self.positions.get(key, 0)
            taken = source[partition][position : position + self.rng.randrange(4)]
            self.positions[key] = position + len(taken)
            found += [Read(partition, *each) for each in taken]
        return found

    def session(self, client: str) -> int:
        return self.sessions.get(client, 0)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 120))
def test_a_valid_history_has_no_anomaly(seed: int, steps: int) -> None:
    assert check(Model(random.Random(seed)).run(steps)) == []


# --- injected anomalies -------------------------------------------------------------------------------------

Injection = Callable[[History, random.Random], bool]
"""Changes a valid history so that it has the anomaly; False if it offers no opportunity."""


def without(history: History, values: set[int], isolations: tuple[str, ...] = (COMMITTED, UNCOMMITTED)) -> None:
    """The final reads do not find these values."""
    for operation in history.operations:
        if operation.kind == "final read" and operation.isolation in isolations:
            operation.polled = [read for read in operation.polled if read.value not in values]


def pick(history: History, rng: random.Random, *outcomes: str, kind: str) -> Operation | None:
    chosen = [each for each in history.operations if each.kind == kind and each.outcome in outcomes and each.sent]
    return rng.choice(chosen) if chosen else None


def lose(history: History, rng: random.Random) -> bool:
    operation = pick(history, rng, OK, kind=SEND)
    if operation is None:
        return False
    without(history, {operation.sent[0].value})
    return True


def tear(history: History, rng: random.Random) -> bool:
    chosen = [
        each for each in history.operations if each.kind == TRANSACTION and each.outcome == OK and len(each.sent) > 1
    ]
    if not chosen:
        return False
    without(history, {rng.choice(chosen).sent[0].value}, (COMMITTED,))
    return True


def duplicate(history: History, rng: random.Random) -> bool:
    final = history.operations[-2]
    if not final.polled:
        return False
    read = rng.choice(final.polled)
    last = max(each.offset for each in final.polled if each.partition == read.partition)
    final.polled.append(read._replace(offset=last + 1))
    return True


def read_aborted(history: History, rng: random.Random) -> bool:
    operation = pick(history, rng, FAIL, kind=TRANSACTION)
    if operation is None:
        return False
    sent = rng.choice(operation.sent)
    history.operations.insert(0, reader(Read(sent.partition, sent.offset, sent.value)))
    return True


def read_early(history: History, rng: random.Random) -> bool:
    operation = pick(history, rng, OK, kind=TRANSACTION)
    if operation is None:
        return False
    sent = rng.choice(operation.sent)
    early = reader(Read(sent.partition, sent.offset, sent.value))
    early.started_us, early.ended_us = operation.started_us, operation.end_started_us - 1
    history.operations.insert(0, early)
    return True


def read_own(history: History, rng: random.Random) -> bool:
    operation = pick(history, rng, OK, kind=TRANSACTION)
    if operation is None:
        return False
    sent = rng.choice(operation.sent)
    operation.polled.append(Read(sent.partition, sent.offset, sent.value))
    return True


def change_an_offset(history: History, rng: random.Random) -> bool:
    final = history.operations[-2]
    if not final.polled:
        return False
    history.operations.insert(0, reader(rng.choice(final.polled)._replace(value=1_000_000)))
    return True


def reorder(history: History, rng: random.Random) -> bool:
    chosen = [
        each for each in history.operations
        if len(each.sent) > 1 and each.sent[0].partition == each.sent[1].partition and each.outcome != FAIL
        and each.is_transaction
    ]  # fmt: skip
    if not chosen:
        return False
    operation = rng.choice(chosen)
    first, second, *rest = operation.sent
    operation.sent = [second, first, *rest]
    return True


def polls_of(history: History, least: int) -> list[tuple[Operation, list[int]]]:
    """Polls that received several records of one partition, with the places of those in the list."""
    found = []
    for operation in history.operations:
        if operation.kind == POLL:
            for partition in PARTITIONS:
                places = [n for n, read in enumerate(operation.polled) if read.partition == partition]
                if len(places) >= least:
                    found.append((operation, places))
    return found


def step_back(history: History, rng: random.Random) -> bool:
    chosen = polls_of(history, 1)
    if not chosen:
        return False
    operation, places = rng.choice(chosen)
    operation.polled.insert(places[-1] + 1, operation.polled[places[-1]])
    return True


def skip(history: History, rng: random.Random) -> bool:
    chosen = polls_of(history, 3)
    if not chosen:
        return False
    operation, places = rng.choice(chosen)
    del operation.polled[places[1]]
    return True


def circle(history: History, rng: random.Random) -> bool:
    chosen = [each for each in history.operations if each.is_transaction and each.outcome == OK]
    if len(chosen) < 2:
        return False
    first, second = rng.sample(chosen, 2)
    for one, other in ((first, second), (second, first)):
        one.polled.append(Read(other.sent[0].partition, other.sent[0].offset, other.sent[0].value))
    return True


def send_astray(history: History, rng: random.Random) -> bool:
    operation = pick(history, rng, OK, kind=SEND)
    if operation is None:
        return False
    sent = operation.sent[0]
    elsewhere = next(each for each in PARTITIONS if each != sent.partition)
    operation.sent[0] = sent._replace(partition=elsewhere, offset=-1)
    return True


def reader(read: Read) -> Operation:
    return Operation("intruder", POLL, polled=[read], outcome=OK, from_start=False)


INJECTIONS: dict[Injection, Kind] = {
    lose: Kind.LOST_WRITE,
    tear: Kind.TORN,
    duplicate: Kind.DUPLICATE,
    read_aborted: Kind.ABORTED_READ,
    read_early: Kind.UNCOMMITTED_READ,
    read_own: Kind.OWN_READ,
    change_an_offset: Kind.INCONSISTENT_OFFSET,
    reorder: Kind.REORDERED,
    step_back: Kind.STEP_BACK,
    skip: Kind.SKIP,
    circle: Kind.CYCLE,
    send_astray: Kind.WRONG_PARTITION,
}


@pytest.mark.parametrize("inject", INJECTIONS, ids=lambda inject: inject.__name__)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_an_injected_anomaly_is_always_found(inject: Injection, seed: int) -> None:
    rng = random.Random(seed)
    history = Model(rng).run(60)
    copy = History([replace(each, sent=[*each.sent], polled=[*each.polled]) for each in history.operations])
    if not inject(copy, rng):
        return
    found = check(copy)
    assert INJECTIONS[inject] in {each.kind for each in found}, [str(each) for each in found]
    assert all(each.evidence for each in found)
