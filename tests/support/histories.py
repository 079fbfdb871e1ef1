"""Operations of `ottla verify` histories, for tests that make a history by hand."""

from collections.abc import Mapping, Sequence

from ottla.verify.checks.checker import check
from ottla.verify.history import COMMITTED, FINAL, OK, History, Operation, Read


def final_read(
    contents: Mapping[str, Sequence[tuple[int, int]]], isolation: str = COMMITTED, client: str = "final"
) -> Operation:
    """A final read that found (offset, value) in each partition."""
    return Operation(
        client,
        FINAL,
        polled=[Read(partition, offset, value) for partition, found in contents.items() for offset, value in found],
        outcome=OK,
        isolation=isolation,
        offsets={partition: found[-1][0] + 1 if found else 0 for partition, found in contents.items()},
    )


def assert_no_anomaly(history: History) -> None:
    """Fails with the operations that prove each anomaly, as the clients recorded them."""
    lines = []
    for anomaly in check(history):
        lines.append(f"{anomaly.kind.value}: {anomaly.message}")
        for evidence in anomaly.evidence:
            lines += [f"  {evidence.note}", f"    by {_shown(history.operations[evidence.operation])}"]
    if lines:
        lines += [f"fault: {fault}" for fault in history.faults]
    assert not lines, "\n".join(lines)


def _shown(operation: Operation) -> str:
    return (
        f"{operation.client}, session {operation.session}, {operation.kind}, {operation.started_us} to "
        f"{operation.ended_us} us: {operation.outcome} {operation.error}"
    )
