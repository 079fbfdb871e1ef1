"""The kills of the demo: one after the other, while a task of each output is held, and what they left behind."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ottla.cli.demo import kills as demo_kills
from ottla.cli.demo.kills import Hold, Kill, Kills, kill_workers
from ottla.cli.demo.shop import ENRICHED, PLAIN
from ottla.spark.sink.failpoints import failpoint


class Topics:
    """What the demo would see in its topics and in Spark's checkpoint."""

    def __init__(self) -> None:
        self.rows: int | None = 1_200
        self.number = 1

    def hidden(self) -> int | None:
        return self.rows

    def batch(self) -> int:
        return self.number


class Scene:
    """Kills whose tasks are held by files."""

    def __init__(self, place: Path, *names: str) -> None:
        self.struck: list[tuple[str, list[int]]] = []
        self.said: list[str] = []
        self.topics = Topics()
        self.place, self.hold = place, Hold(place)
        planned = [self._kill(name) for name in names]
        self.kills = Kills(
            planned, self.hold, cast("Any", self.topics), lambda text, style="default": self.said.append(text)
        )

    def _kill(self, name: str) -> Kill:
        def strike(held: Sequence[int]) -> str:
            self.struck.append((name, list(held)))
            return f"7: {name}"

        return Kill(name, strike)

    def reach(self, output: str, pid: int) -> None:
        """A task reaches its failpoint."""
        with (self.place / f"held-{output}").open("x") as file:
            file.write(str(pid))


def test_a_kill_waits_until_a_task_of_each_output_is_held(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "worker")
    scene.kills.on_tick()
    assert not scene.hold.is_complete
    scene.kills.on_batch(0)  # from now on tasks are held
    scene.kills.on_tick()
    scene.reach("exactly-once", 71)
    scene.kills.on_tick()
    assert not scene.struck
    scene.reach("at-least-once", 72)
    scene.kills.on_tick()
    assert scene.struck == [("worker", [71, 72])]
    assert scene.said[0] == "kill -9 7: worker; batch 1 is written and not committed"
    assert "left behind: 1,200 rows of orders.enriched that only read_uncommitted consumers see" in scene.said[1]
    assert scene.kills.kills[0].document() == {
        "killed": "worker",
        "batch": 1,
        "left_uncommitted": 1_200,
        "back_after_s": None,
    }


def test_the_next_kill_is_due_when_the_interrupted_batch_is_committed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "worker", "driver")
    scene.kills.on_batch(0)
    for output in ("exactly-once", "at-least-once"):
        scene.reach(output, 71)
    scene.topics.number = 2
    scene.kills.on_tick()
    scene.kills.on_batch(1)  # a late report about the batch before
    assert len(scene.said) == 2
    scene.kills.on_batch(2)
    assert scene.said[-1].startswith("recovered: batch 2 was committed")
    for output in ("exactly-once", "at-least-once"):
        scene.reach(output, 73)
    scene.kills.on_tick()
    assert [name for name, _ in scene.struck] == ["worker", "driver"]
    assert not scene.kills.are_over
    scene.kills.on_batch(2)
    assert scene.kills.are_over


def test_tasks_that_cannot_be_held_do_not_stop_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other machines: no worker is killed, then the driver is, at any moment."""
    monkeypatch.setattr(demo_kills, "HELD_S", -1.0)
    scene = Scene(tmp_path, "driver")
    scene.kills.kills.insert(0, Kill("worker", kill_workers))
    scene.kills.on_batch(0)
    scene.kills.on_tick()
    scene.kills.on_tick()
    assert scene.struck == [("driver", [])]
    assert scene.said[0] == "kill -9 7: driver; no batch could be held"


def test_when_the_work_is_over_no_task_is_held_any_more(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "worker")
    scene.kills.on_batch(0)
    scene.kills.give_up()
    assert scene.kills.are_over
    with scene.hold.installed():
        failpoint("after-prepare", ENRICHED)


def test_a_task_is_held_once_and_only_in_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_FAILPOINT", raising=False)
    hold = Hold(tmp_path)
    with hold.installed():
        failpoint("after-store", PLAIN)  # not armed
        hold.arm()
        for output in ("held-exactly-once", "held-at-least-once"):
            (tmp_path / f"{output}.go").touch()  # so that this process is not stopped
        failpoint("after-prepare", "revenue")
        failpoint("after-prepare", ENRICHED)
        assert hold.held() == [os.getpid()]
        failpoint("after-store", PLAIN)
        assert hold.is_complete
    assert "OTTLA_FAILPOINT" not in os.environ
