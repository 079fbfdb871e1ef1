"""`ottla verify` finds a broker whose rule is switched off, and names the anomaly that follows. Spec: R2, R7"""

import os
import sys
from pathlib import Path

import pytest

from ottla.verify.anomalies import Anomaly, Kind
from ottla.verify.checks.checker import check
from ottla.verify.clients.own import OwnLibrary
from ottla.verify.cluster.local import LocalCluster
from ottla.verify.cluster.nemesis import Nemesis
from ottla.verify.run import Run
from ottla.verify.timeline import draw
from ottla.verify.workloads import Options
from tests.support.processes.broken_broker import VARIABLE

pytestmark = pytest.mark.long
ATTEMPTS = 6
"""Runs with different seeds. One that finds the bug is enough: some need a fault at the right moment."""


def found_without(
    rule: str,
    workload: str,
    *,
    brokers: int = 1,
    faults: tuple[str, ...] = (),
    seconds: float = 6.0,
    rate: float = 40.0,
) -> list[Anomaly]:
    """The anomalies of a run against brokers without this rule."""
    environment = {VARIABLE: rule, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for seed in range(ATTEMPTS):
        with LocalCluster(brokers, module="tests.support.processes.broken_broker", environment=environment) as cluster:
            settings = {"bootstrap.servers": cluster.bootstrap}
            options = Options(workloads=(workload,), seconds=seconds, seed=seed, patience_s=30, rate=rate)
            nemesis = Nemesis(cluster, faults, seed, patience_s=30, say=lambda _: None) if faults else None
            history = Run(options, settings, [OwnLibrary(settings)], fault_injector=nemesis).execute()
        anomalies = check(history)
        if anomalies:
            directory = os.environ.get("OTTLA_PICTURES")
            if directory:
                Path(directory, f"{rule.replace(' ', '-')}.svg").write_text(draw(history, anomalies[0]))
            return anomalies
    raise AssertionError(f"{ATTEMPTS} runs without the rule {rule!r} found nothing")


def kinds(anomalies: list[Anomaly]) -> set[Kind]:
    return {anomaly.kind for anomaly in anomalies}


def test_consumers_that_are_not_held_back_by_open_transactions_are_noticed() -> None:
    """Without the last stable offset."""
    assert kinds(found_without("last stable offset", "transactions")) & {Kind.UNCOMMITTED_READ, Kind.ABORTED_READ}


def test_consumers_that_are_not_told_of_aborted_transactions_are_noticed() -> None:
    assert Kind.ABORTED_READ in kinds(found_without("aborted index", "transactions"))


def test_repeated_batches_are_noticed() -> None:
    """Without the sequence check: a batch whose acknowledgement was lost is sent again."""
    found = found_without("sequence check", "list-append", faults=("kill", "partition"), seconds=25, rate=200)
    assert kinds(found) & {Kind.DUPLICATE, Kind.REORDERED}


def test_fenced_producers_that_continue_are_noticed() -> None:
    assert kinds(found_without("epoch check", "transactions", seconds=15)) & {
        Kind.TORN,
        Kind.LOST_WRITE,
        Kind.ABORTED_READ,
    }


def test_acknowledgements_that_do_not_wait_for_replicas_are_noticed() -> None:
    found = found_without("high watermark", "list-append", brokers=3, faults=("kill", "pause"), seconds=30, rate=200)
    assert kinds(found) & {Kind.LOST_WRITE, Kind.UNSEEN, Kind.INCONSISTENT_OFFSET}


def test_members_of_old_generations_that_commit_are_noticed() -> None:
    found = found_without("generation fencing", "copier", seconds=40)
    assert kinds(found) & {Kind.COPY_TWICE, Kind.COPY_ORDER, Kind.OFFSET_BACK}
