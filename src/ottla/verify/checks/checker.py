"""Finds anomalies in a history, modelled on Jepsen's Kafka workload. Linear in its length, but for sorting. Pure."""

from collections.abc import Callable, Iterator

from ottla.garbage_collection import garbage_collection_paused
from ottla.verify.anomalies import Anomaly
from ottla.verify.checks.copy_checks import check_copies
from ottla.verify.checks.cycle_check import check_cycles
from ottla.verify.checks.group_checks import check_committed_offsets, check_owners, check_processing, check_zombies
from ottla.verify.checks.knowledge import Knowledge, learn
from ottla.verify.checks.progress_check import check_progress
from ottla.verify.checks.read_checks import check_isolation, check_offsets, check_poll_order
from ottla.verify.checks.write_checks import check_duplicates, check_send_order, check_writes
from ottla.verify.history import OK, History

CHECKS: tuple[Callable[[Knowledge], Iterator[Anomaly]], ...] = (
    check_writes,
    check_duplicates,
    check_isolation,
    check_offsets,
    check_send_order,
    check_poll_order,
    check_cycles,
    check_copies,
    check_owners,
    check_zombies,
    check_committed_offsets,
    check_processing,
    check_progress,
)


def check(history: History) -> list[Anomaly]:
    """All anomalies of a history."""
    with garbage_collection_paused():  # there are millions of objects
        known = learn(history)
        return [anomaly for find in CHECKS for anomaly in find(known)]


def why_inconclusive(history: History) -> str:
    """Why a history without anomalies proves nothing; empty if it does prove something."""
    if not any(operation.outcome == OK and operation.sent for operation in history.operations):
        return "no write was acknowledged"
    if not any(True for _ in history.finals("read_committed")):
        return "the final read is missing"
    return ""
