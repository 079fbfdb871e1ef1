"""The kills of the demo: one after the other, in the middle of a batch, and what they left behind."""

from typing import Any

from ottla.cli.demo.kills import Kill, Kills, Written


class Topics:
    """What the demo would see in its topics."""

    def __init__(self) -> None:
        self.written: Written | None = Written(0, 0)

    def look(self) -> Written | None:
        return self.written


def scene(*names: str) -> tuple[Kills, Topics, list[str], list[str]]:
    struck: list[str] = []
    said: list[str] = []

    def kill(name: str, at: float) -> Kill:
        def strike() -> str:
            struck.append(name)
            return f"7: {name}"

        return Kill(name, at, strike)

    topics: Any = Topics()
    kills = [kill(name, 0.1 * (index + 1)) for index, name in enumerate(names)]
    return Kills(kills, topics, lambda text, style="default": said.append(text)), topics, struck, said


def test_a_kill_waits_for_its_time_and_for_rows_that_are_being_written() -> None:
    kills, topics, struck, said = scene("worker")
    topics.written = Written(5, 5)
    kills.on_tick(0.05)
    topics.written = Written(0, 5)
    kills.on_tick(0.5)
    assert not struck
    topics.written = Written(1_200, 30)
    kills.on_tick(0.5)
    assert struck == ["worker"]
    assert said[0] == "kill -9 7: worker, in the middle of a batch"
    assert "1,200 rows of orders.enriched in open transactions, visible to read_uncommitted only; 30 rows" in said[1]
    assert kills.kills[0].document()["left_hidden"] == 1_200


def test_near_the_end_of_the_work_a_kill_does_not_wait_for_a_batch() -> None:
    kills, _, struck, said = scene("worker")
    kills.on_tick(0.89)
    assert not struck
    kills.on_tick(0.9)
    assert said == ["kill -9 7: worker, between two batches"]


def test_the_next_kill_is_due_when_the_work_goes_on_after_the_one_before() -> None:
    kills, topics, struck, said = scene("worker", "driver")
    topics.written = Written(9, 9)
    for _ in range(3):
        kills.on_tick(0.8)
    assert struck == ["worker"]
    kills.on_batch()
    assert said[-1].startswith("recovered: a batch was committed")
    kills.on_tick(0.9)
    assert struck == ["worker", "driver"]
    assert not kills.are_over
    kills.on_batch()
    assert kills.are_over


def test_a_victim_that_cannot_be_found_is_skipped() -> None:
    kills, topics, struck, _ = scene("driver")
    kills.kills.insert(0, Kill("worker", 0.0, lambda: None))
    topics.written = Written(9, 9)
    kills.on_tick(0.9)
    kills.on_tick(0.9)
    assert struck == ["driver"]


def test_while_the_broker_is_away_what_was_seen_last_is_reported() -> None:
    kills, topics, _, said = scene("broker")
    topics.written = Written(4, 2)

    def strike() -> str:
        topics.written = None
        return "7: broker"

    kills.kills[0].strike = strike
    kills.on_tick(0.9)
    assert "4 rows of orders.enriched" in said[1]
