"""Hostile peers: the latency of a normal client, and the broker's memory, while all attacks run at the same time.

The attacks are in `tests/support/hostile`: idle connections, partial frames, peers that never read, resets during
fetches, decompression bombs, huge groups, garbage, connection churn, floods of topics, producers, fetch sessions and
transactions, and on a listener with SASL peers that never authenticate. They run in one process of low priority and
within fixed numbers, so that they cost little CPU time. The normal client is another process.
"""

import contextlib
import dataclasses
import re
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench.results import Results
from tests.support.hostile import running
from tests.support.hostile.attackers import ATTACKS
from tests.support.hostile.battlefield import Numbers
from tests.support.hostile.normal_client import ALL
from tests.support.ports import fixed_port
from tests.support.processes.oracle import PRODUCTION_JVM, RealKafka

SUITE = "hostile"
COUNTS = "hostile: what the attackers did"
SECONDS = 60.0
QUICK_SECONDS = 10.0
ATTACK_NAMES = list(ATTACKS)
LONGEST_STEP = "ottla_event_loop_longest_step_seconds"


class Target(NamedTuple):
    bootstrap: str
    pid: int
    metrics_url: str | None = None
    sasl_port: int = 0
    """A listener for peers that never authenticate."""


def run(
    names: list[str],
    results: Results,
    rounds: int,
    quick: bool,
    step: Any,
    *,
    seconds: float | None,
    attacks: Sequence[str],
) -> None:
    """Each round runs all attacks against each broker in turn, on a new broker."""
    seconds = seconds or (QUICK_SECONDS if quick else SECONDS)
    contenders = [name for name in names if name in TARGETS]
    step(total=rounds * len(contenders))
    for _ in range(rounds):
        for name in contenders:
            step(f"{name}: {', '.join(attacks)} for {seconds:g} s")
            with TARGETS[name]() as target:
                numbers = dataclasses.replace(Numbers.full(), sasl_port=target.sasl_port)
                report = running.run(target.bootstrap, target.pid, attacks=attacks, seconds=seconds, numbers=numbers)
                longest_step_s = scrape(target.metrics_url, LONGEST_STEP)
            note(results, name, report, longest_step_s)


def note(results: Results, name: str, report: running.Report, longest_step_s: float | None) -> None:
    def add(label: str, unit: str, value: float) -> None:
        results.add(SUITE, label, unit, name, value)

    for operation in report.operations:
        what = f"{operation}, from the due time" if operation == ALL else operation
        for share, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
            add(f"{what}: {label}", "ms", report.quantile_ms(share, operation))
    add("operations that failed", "count", len(report.errors))
    add("resident memory, peak", "MB", report.peak_mb)
    add("resident memory, at the end", "MB", report.end_mb)
    add("broker CPU", "% of a core", report.broker_cpu * 100)
    add("attackers' CPU", "% of a core", report.attackers_cpu * 100)
    if longest_step_s is not None:
        add("longest step of the event loop, last 1 to 2 minutes", "ms", longest_step_s * 1000)
    for label, count in sorted(report.counts.items()):
        results.add(COUNTS, label, "count", name, count, more_is_better=True)


@contextlib.contextmanager
def ottla() -> Iterator[Target]:
    from ottla import Broker

    sasl_port = fixed_port()
    with Broker.embedded(**running.with_sasl(sasl_port, {"ottla.metrics.listen": "127.0.0.1:0"})) as broker:
        found = re.search(r"metrics at (http://\S+)", broker.log)
        yield Target(broker.bootstrap, broker.pid, found[1] if found else None, sasl_port)


@contextlib.contextmanager
def kafka() -> Iterator[Target]:
    with RealKafka(jvm=PRODUCTION_JVM) as broker:
        yield Target(broker.bootstrap, broker.pid)


TARGETS = {"ottla": ottla, "kafka": kafka}


def scrape(url: str | None, name: str) -> float | None:
    """The value of one metric without labels; None if the broker does not have it."""
    if url is None:
        return None
    with urllib.request.urlopen(url, timeout=60) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else None
