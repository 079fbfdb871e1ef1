"""Verifies the output of the demo: reads the topics, compares them with the expected result, prints a table."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rich.text import Text

from ottla.cli.demo.shop import ENRICHED, PLAIN, REVENUE, Expected
from ottla.cli.output import console, count, print_table
from ottla.client.blocking import Admin, Consumer
from ottla.client.core.model import Records
from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.pipeline.running.lag import end_offsets

READ_TIMEOUT_S = 30
POLL_MS = 200


@dataclass
class Proof:
    """What a read_committed consumer found in one output topic."""

    output: str
    unit: str
    expected: int
    found: int = 0
    duplicates: int = 0
    missing: int = 0
    wrong: int = 0
    expected_cents: int = 0
    found_cents: int = 0
    never_seen: int = 0
    """Aborted records in the topic, written by killed or repeated attempts; read_committed consumers skip them."""
    may_repeat: bool = False
    """At-least-once: duplicates are allowed, missing rows are not."""

    @property
    def is_good(self) -> bool:
        if self.may_repeat:
            return not self.missing and not self.wrong and self.found == self.expected + self.duplicates
        faults = self.duplicates or self.missing or self.wrong
        return not faults and self.found == self.expected and self.found_cents == self.expected_cents

    def document(self) -> dict[str, Any]:
        return {
            "output": self.output,
            "expected": self.expected,
            "found": self.found,
            "duplicates": self.duplicates,
            "missing": self.missing,
            "wrong": self.wrong,
            "expected_sum": self.expected_cents / 100,
            "found_sum": self.found_cents / 100,
            "aborted": self.never_seen,
            "good": self.is_good,
        }


def prove(bootstrap: str, wanted: Expected) -> list[Proof]:
    return [
        _prove_orders(bootstrap, wanted, "enriched", ENRICHED),
        _prove_revenue(bootstrap, wanted),
        _prove_orders(bootstrap, wanted, "at-least-once", PLAIN, may_repeat=True),
    ]


def _prove_orders(bootstrap: str, wanted: Expected, output: str, topic: str, *, may_repeat: bool = False) -> Proof:
    proof = Proof(output, "orders", wanted.orders, expected_cents=wanted.cents, may_repeat=may_repeat)
    seen = bytearray(wanted.orders)
    for row in _rows(bootstrap, topic):
        proof.found += 1
        number = row["id"]
        if not 0 <= number < wanted.orders:
            proof.wrong += 1
            continue
        proof.duplicates += 1 if seen[number] else 0
        seen[number] = 1
        proof.found_cents += _cents(row["total"])
    proof.missing = seen.count(0)
    proof.never_seen = _records(bootstrap, topic) - proof.found
    return proof


def _prove_revenue(bootstrap: str, wanted: Expected) -> Proof:
    proof = Proof("revenue", "windows", len(wanted.windows), expected_cents=wanted.cents)
    times: Counter[tuple[str, str]] = Counter()
    for row in _rows(bootstrap, REVENUE):
        proof.found += 1
        window = (row["opens"][:16], row["item"])
        times[window] += 1
        cents = _cents(row["revenue"])
        proof.found_cents += cents
        if wanted.windows.get(window) != (row["orders"], cents):
            proof.wrong += 1
    proof.duplicates = sum(n - 1 for n in times.values())
    proof.missing = len(wanted.windows.keys() - times.keys())
    proof.never_seen = _records(bootstrap, REVENUE) - proof.found
    return proof


def _rows(bootstrap: str, topic: str) -> Iterator[dict[str, Any]]:
    """The committed records of a topic."""
    for records in _batches(bootstrap, topic, "read_committed"):
        for record in records:
            yield json.loads(record.value or b"null", parse_float=Decimal)


def _batches(bootstrap: str, topic: str, isolation_level: str) -> Iterator[Records]:
    """The records of a topic up to its current end."""
    settings = {"bootstrap.servers": bootstrap, "isolation.level": isolation_level, "auto.offset.reset": "earliest"}
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        ends = {partition: end for partition, end in end_offsets(admin, [topic]).items() if end}
    deadline = monotonic() + READ_TIMEOUT_S
    with Consumer(settings) as consumer:
        consumer.assign(list(ends))
        # The last entry of a partition is a transaction marker: it moves the position but is not a record.
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            records = consumer.poll(POLL_MS)
            if records:
                deadline = monotonic() + READ_TIMEOUT_S
                yield records
            elif monotonic() > deadline:
                raise OttlaError(f"cannot read topic {topic} to its end", "this is a bug, please report it")


def _records(bootstrap: str, topic: str) -> int:
    """The number of records in a topic, including those of aborted transactions, without markers."""
    found = 0
    for records in _batches(bootstrap, topic, "read_uncommitted"):
        found += sum(len(batch) for batch in records.by_partition.values())
    return found


def _cents(amount: Any) -> int:
    return int((Decimal(amount) * 100).to_integral_value())


def print_proofs(proofs: list[Proof]) -> None:
    """Prints the comparison of expected and actual output."""
    # One column per output, so that the table fits into 80 columns.
    lines: list[tuple[str, Callable[[Proof], Text | str]]] = [
        ("expected", lambda proof: f"{count(proof.expected)} {proof.unit}"),
        ("found", lambda proof: f"{count(proof.found)} {proof.unit}"),
        ("duplicates", lambda proof: _fault(proof.duplicates, proof.may_repeat)),
        ("missing", lambda proof: _fault(proof.missing)),
        ("wrong", lambda proof: _fault(proof.wrong)),
        ("expected sum", lambda proof: f"{proof.expected_cents / 100:,.2f}"),
        ("found sum", lambda proof: Text(f"{proof.found_cents / 100:,.2f}", style=_verdict(proof))),
        ("never committed", lambda proof: f"+{count(proof.never_seen)} rows" if proof.never_seen else ""),
    ]
    outputs = [proof.output for proof in proofs]
    rows = [[name, *(cell(proof) for proof in proofs)] for name, cell in lines]
    print_table(["", *outputs], rows, right=outputs)
    if any(proof.never_seen for proof in proofs):
        console().print(
            "never committed: left behind by killed attempts; read_uncommitted consumers see these rows,\n"
            "read_committed consumers never do",
            style="dim",
        )


def _fault(number: int, is_allowed: bool = False) -> Text:
    return Text(count(number), style=("yellow" if is_allowed else "bold red") if number else "green")


def _verdict(proof: Proof) -> str:
    if proof.is_good:
        return "yellow" if proof.duplicates else "green"
    return "bold red"
