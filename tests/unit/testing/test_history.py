"""Spec: R2. The history checker finds every kind of anomaly, and none in a clean history."""

import pytest

from tests.support.history import FAILED, OK, UNKNOWN, Transaction, anomalies


def test_a_clean_history_has_no_anomalies() -> None:
    history = [
        Transaction(0, [(0, 1), (1, 2), (0, 3)], [], OK),
        Transaction(1, [(0, 4)], [((0, 0), 1), ((0, 1), 3), ((1, 0), 2)], FAILED),
        Transaction(1, [(1, 5)], [], UNKNOWN),
        Transaction(2, [(1, 6), (0, 7)], [], UNKNOWN),
    ]
    assert anomalies(history, {0: [(0, 1), (1, 3), (5, 7)], 1: [(0, 2), (3, 6)]}) == []


@pytest.mark.parametrize(
    ("name", "history", "final"),
    [
        ("lost write", [Transaction(0, [(0, 1)], [], OK)], {0: []}),
        ("aborted write", [Transaction(0, [(0, 1)], [], FAILED)], {0: [(0, 1)]}),
        ("torn transaction", [Transaction(0, [(0, 1), (1, 2)], [], UNKNOWN)], {0: [(0, 1)], 1: []}),
        ("duplicate", [Transaction(0, [(0, 1)], [], OK)], {0: [(0, 1), (2, 1)]}),
        ("astray", [Transaction(0, [(0, 1)], [], OK)], {1: [(0, 1)]}),
        ("reordered", [Transaction(0, [(0, 1), (0, 2)], [], OK)], {0: [(0, 2), (1, 1)]}),
        ("inconsistent offset", [Transaction(0, [], [((0, 0), 9)], OK)], {0: [(0, 1)]}),
        ("step back", [Transaction(0, [], [((0, 1), 2), ((0, 0), 1)], OK)], {0: [(0, 1), (1, 2)]}),
        ("skip", [Transaction(0, [], [((0, 2), 2)], OK)], {0: [(0, 1), (2, 2)]}),
        ("aborted read", [Transaction(0, [(0, 1)], [], FAILED), Transaction(1, [], [((0, 0), 1)], OK)], {0: []}),
        ("own uncommitted", [Transaction(0, [(0, 1)], [((0, 0), 1)], OK)], {0: [(0, 1)]}),
        (
            "circular",
            [Transaction(0, [(0, 1)], [((1, 0), 2)], OK), Transaction(1, [(1, 2)], [((0, 0), 1)], OK)],
            {0: [(0, 1)], 1: [(0, 2)]},
        ),
    ],
)
def test_each_anomaly_is_found(name: str, history: list[Transaction], final: dict[int, list[tuple[int, int]]]) -> None:
    found = anomalies(history, final)
    assert any(line.startswith(name) for line in found), found
