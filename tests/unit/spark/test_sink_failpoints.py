"""Failpoints stop, fail and hold the sink in the code path that it ships with. Spec: R9."""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ottla
from ottla.spark.sink import driver as sink_driver
from ottla.spark.sink import failpoints
from ottla.spark.sink.decisions import Part, SinkState
from ottla.spark.sink.driver import Batch, Driver
from ottla.spark.sink.ledger import Names
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.states import BatchState

PARTS = tuple(Part(task, producer_id=task, producer_epoch=0) for task in range(3))


class Brokers:
    """The clients of a driver. A commit is answered once `in_flight` commits were sent."""

    def __init__(self, in_flight: int) -> None:
        self.arrived = 0
        self.enough = asyncio.Event()
        self.in_flight = in_flight
        self.committed: list[int] = []

    async def commit_part(self, names: Names, part: Part) -> None:
        self.arrived += 1
        if self.arrived == self.in_flight:
            self.enough.set()
        await asyncio.wait_for(self.enough.wait(), 60)
        self.committed.append(part.task)

    async def ensure_decisions(self, names: Names) -> None: ...

    async def read_state(self, names: Names) -> SinkState:
        return SinkState()

    async def read_ledger(self, names: Names, tasks: Iterable[int]) -> dict[int, Any]:
        return {}

    async def abort_leftovers(self, names: Names, keep: set[int]) -> list[str]:
        return []

    def notes(self) -> "Decisions":
        return Decisions()


class Decisions:
    """A producer of the decisions topic that never waits."""

    async def init_transactions(self, **_: Any) -> None: ...
    async def begin_transaction(self) -> None: ...
    async def commit_transaction(self, **_: Any) -> None: ...
    async def close(self, **_: Any) -> None: ...

    async def send(self, *_: Any, **__: Any) -> "asyncio.Future[None]":
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent


@pytest.fixture
def driver_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("OTTLA_FAILPOINT", raising=False)
    monkeypatch.setattr(sink_driver, "driver_producer", lambda options, names: Decisions())
    options = SinkOptions.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}, True)
    return lambda brokers: Driver(brokers, options, Names("sink"))


BATCH = Batch("query", "run", 0, BatchState.PREPARED, PARTS)


@pytest.mark.parametrize(
    "setting", ["", "elsewhere:kill:{}", "after-part-commit:hold:{}"], ids=["none", "other", "held"]
)
def test_all_parts_are_committed_concurrently_with_and_without_failpoints(
    setting: str, driver_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit is answered before all three are in flight: sequential commits would wait forever."""
    if setting:
        monkeypatch.setenv("OTTLA_FAILPOINT", setting.format(tmp_path / "reached"))
    (tmp_path / "reached.go").touch()

    async def commit() -> list[int]:
        brokers = Brokers(in_flight=len(PARTS))
        await driver_of(brokers).commit(BATCH)
        return brokers.committed

    assert sorted(asyncio.run(commit())) == [0, 1, 2]
    assert (tmp_path / "reached").exists() == setting.startswith("after-part-commit")


def test_the_driver_calls_the_same_functions_with_and_without_failpoints(
    driver_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calls() -> list[str]:
        """The functions of the driver in the order in which a commit calls them."""
        seen: list[str] = []

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename == sink_driver.__file__:
                seen.append(frame.f_code.co_qualname)

        async def commit() -> None:
            await driver_of(Brokers(in_flight=len(PARTS))).commit(BATCH)

        sys.setprofile(note)
        try:
            asyncio.run(commit())
        finally:
            sys.setprofile(None)
        return seen

    without = calls()
    monkeypatch.setenv("OTTLA_FAILPOINT", f"elsewhere:kill:{tmp_path / 'reached'}")
    assert calls() == without
    assert without.count("Driver._commit_or_explain") >= len(PARTS)


def test_only_the_failpoints_module_reads_the_environment_variable() -> None:
    root = Path(ottla.__file__).parent
    asking = [path for path in root.rglob("*.py") if "OTTLA_FAILPOINT" in path.read_text(encoding="utf-8")]
    assert asking == [Path(failpoints.__file__)]


def test_one_part_is_held_while_the_others_are_committed(
    driver_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This lets tests act between two EndTxn requests of a driver that sends all of them concurrently."""
    held = tmp_path / "held"
    monkeypatch.setenv("OTTLA_FAILPOINT", f"before-part-commit:hold:{held}")

    async def commit() -> None:
        brokers = Brokers(in_flight=2)
        working = asyncio.ensure_future(driver_of(brokers).commit(BATCH))
        while len(brokers.committed) < 2:  # noqa: ASYNC110 - the driver sets no event
            await asyncio.sleep(0)
        assert held.exists()
        assert sorted(brokers.committed) == [1, 2]
        assert not working.done()
        Path(f"{held}.go").touch()  # noqa: ASYNC240 - a test
        await working
        assert sorted(brokers.committed) == [0, 1, 2]

    asyncio.run(commit())


def test_after_a_failure_behind_the_decision_the_driver_reads_the_stored_state_again(
    driver_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_FAILPOINT", f"after-decision:fail:{tmp_path / 'failed'}")

    async def commit_twice() -> list[int]:
        brokers = Brokers(in_flight=len(PARTS))
        driver = driver_of(brokers)
        with pytest.raises(RuntimeError, match="failpoint after-decision: fail"):
            await driver.commit(BATCH)
        assert brokers.committed == []
        await driver.commit(BATCH)  # the failpoint happens once
        return brokers.committed

    assert sorted(asyncio.run(commit_twice())) == [0, 1, 2]


def test_failpoints_do_nothing_unless_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_FAILPOINT", raising=False)
    failpoints.failpoint("here")
    monkeypatch.setenv("OTTLA_FAILPOINT", f"there:fail:{tmp_path / 'there'},here:fail:{tmp_path / 'here'}")
    with pytest.raises(RuntimeError, match="failpoint here: fail"):
        failpoints.failpoint("here")
    failpoints.failpoint("here")  # each happens once
    assert not (tmp_path / "there").exists()


def test_an_unknown_action_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_FAILPOINT", f"here:hold:{tmp_path / 'here'}")
    with pytest.raises(ValueError, match="unknown action hold at here"):
        failpoints.failpoint("here")
