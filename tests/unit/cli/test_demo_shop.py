"""The data of the demo: the expected result matches the orders, and the pipeline file is valid."""

import json
from dataclasses import replace
from pathlib import Path

from ottla.cli.demo.proof import Proof
from ottla.cli.demo.shop import (
    LATE,
    PRICES,
    closing_order,
    expected,
    last_window_end,
    orders,
    pipeline_text,
    prices_text,
)
from ottla.pipeline.definition.loading import load


def test_the_expected_result_matches_the_orders() -> None:
    windows: dict[tuple[str, str], tuple[int, int]] = {}
    cents = 0
    for number, text in enumerate(orders(30_000)):
        row = json.loads(text)
        assert row["id"] == number
        price = row["quantity"] * PRICES[row["item"]]
        cents += price
        window = (row["at"][:15] + "0", row["item"])  # ten minutes: the last digit of the minute does not count
        before = windows.get(window, (0, 0))
        windows[window] = before[0] + 1, before[1] + price
    wanted = expected(30_000)
    assert (wanted.windows, wanted.cents, wanted.orders) == (windows, cents, 30_000)
    assert len({window for window, _ in windows}) == 3
    assert {item for _, item in windows} == set(PRICES)


def test_the_closing_order_closes_the_last_window() -> None:
    from datetime import datetime

    closing = json.loads(closing_order(30_000))
    assert closing["item"] not in PRICES
    assert datetime.fromisoformat(closing["at"]) - LATE > last_window_end(30_000)


def test_the_pipeline_file_of_the_demo_is_valid(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(pipeline_text(per_batch=1_000))
    made = load(tmp_path / "demo.yaml")
    assert list(made.outputs) == ["enriched", "revenue", "at-least-once"]
    assert made.topics_out == ["orders.enriched", "revenue", "orders.at-least-once"]
    assert prices_text().startswith("item,price\napple,0.50\n")


def test_any_difference_makes_the_proof_fail() -> None:
    good = Proof("o", "orders", expected=5, found=5, expected_cents=9, found_cents=9)
    assert good.is_good
    for name, value in (("duplicates", 1), ("missing", 1), ("wrong", 1), ("found", 6), ("found_cents", 8)):
        wrong = replace(good)
        setattr(wrong, name, value)
        assert not wrong.is_good, name


def test_duplicates_are_allowed_in_the_at_least_once_output_and_missing_orders_are_not() -> None:
    plain = Proof("p", "orders", expected=5, found=7, duplicates=2, may_repeat=True)
    assert plain.is_good
    assert not replace(plain, missing=1).is_good
    assert not replace(plain, found=6).is_good
