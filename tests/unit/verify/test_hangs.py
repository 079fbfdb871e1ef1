"""A run of `ottla verify` ends, whatever hangs, and says where it hung."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from ottla.verify.checks.progress_check import longest_calm
from ottla.verify.cluster.nemesis import Nemesis
from ottla.verify.hangs import Hang, StallWatch, all_within, within
from ottla.verify.history import Fault
from ottla.verify.run import Run
from ottla.verify.workers.recorder import Recorder
from ottla.verify.workloads import Options, Stage

if TYPE_CHECKING:
    from ottla.verify.cluster.local import LocalCluster


@contextmanager
def blocked() -> Iterator[Callable[[], None]]:
    """A call that does not return until the block ends."""
    release = threading.Event()

    def stand_still() -> None:
        release.wait(30)

    try:
        yield stand_still
    finally:
        release.set()


class FakeCluster:
    """Three brokers that do not exist; `restore` is what the test says."""

    brokers = (0, 1, 2)
    has_remote_store = False

    def __init__(self, restore: Callable[[], object]) -> None:
        self._restore = restore
        self.restored = threading.Event()

    def unexpected_ends(self) -> list[str]:
        return []

    def kill(self, broker: int) -> None:
        pass

    def restore(self) -> list[str]:
        self.restored.set()
        self._restore()
        return []


def nemesis_on(restore: Callable[[], object], limit_s: float = 0.2) -> tuple[Nemesis, FakeCluster]:
    cluster = FakeCluster(restore)
    nemesis = Nemesis(
        cast("LocalCluster", cluster), ("kill",), 1, patience_s=0.1, say=lambda _: None, restore_limit_s=limit_s
    )
    return nemesis, cluster


def check_for_a_while(nemesis: Nemesis) -> None:
    for _ in range(1000):
        nemesis.check()
        threading.Event().wait(0.01)


def moments() -> Callable[[], float]:
    """A clock that runs a thousand times as fast, so that episodes of seconds are over soon."""
    from ottla.clock import monotonic

    return lambda: monotonic() * 1000


def test_a_call_that_ends_in_time_returns_its_result_or_raises_its_error() -> None:
    assert within(5, "an addition", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        within(5, "a division", lambda: 1 // 0)


def test_a_call_that_hangs_is_named_with_the_place_where_it_is_stuck() -> None:
    with (
        blocked() as call,
        pytest.raises(Hang, match=r"the final read has made no progress for 0\.1 s; it is stuck at"),
    ):
        within(0.1, "the final read", call)
    with blocked() as call, pytest.raises(Hang, match=r"stand_still \(test_hangs\.py:\d+\)"):
        within(0.1, "the final read", call)


def test_a_call_that_makes_progress_may_take_longer() -> None:
    steps: list[int] = []

    def walk() -> int:
        for step in range(8):
            threading.Event().wait(0.05)
            steps.append(step)
        return len(steps)

    assert within(0.25, "a walk", walk, progress=lambda: len(steps)) == 8


def test_calls_side_by_side_share_one_limit() -> None:
    assert all_within(5, "sums", [lambda: 1, lambda: 2]) == [1, 2]
    with blocked() as call, pytest.raises(Hang):
        all_within(0.1, "sums", [lambda: None, call])


@pytest.mark.slow
def test_a_nemesis_that_cannot_heal_does_not_keep_the_run_waiting() -> None:
    with blocked() as call:
        nemesis, cluster = nemesis_on(call)
        nemesis.begin(Recorder(moments()), lambda _: [])
        nemesis.check()  # nothing is wrong yet
        assert cluster.restored.wait(20)  # the first calm and one episode: at most eight seconds
        with pytest.raises(Hang, match="the nemesis"):
            nemesis.end()


@pytest.mark.slow
def test_a_nemesis_that_stands_still_is_noticed_while_the_run_lasts() -> None:
    with blocked() as call:
        nemesis, cluster = nemesis_on(call, limit_s=0.0)
        nemesis.begin(Recorder(moments()), lambda _: [])
        assert cluster.restored.wait(20)
        with pytest.raises(Hang, match=r"the nemesis .* restore \(test_hangs\.py"):
            check_for_a_while(nemesis)


@pytest.mark.slow
def test_a_nemesis_that_crashes_ends_the_run_early() -> None:
    def fail() -> None:
        raise RuntimeError("no such link")

    nemesis, cluster = nemesis_on(fail)
    nemesis.begin(Recorder(moments()), lambda _: [])
    assert cluster.restored.wait(20)
    with pytest.raises(RuntimeError, match="no such link"):
        check_for_a_while(nemesis)


class SilentRun(Run):
    """A run without clients, whose end is left out."""

    def _create_topics(self, topics: object) -> None:
        pass

    def _finish(self, stage: Stage) -> None:
        pass


class StuckFaultInjector:
    def begin(self, recorder: Recorder, progress_since: Callable[[int], list[str]]) -> None:
        pass

    def check(self) -> None:
        raise Hang("the nemesis has made no progress for 300 s; it is stuck at wait (nemesis.py:62)")

    def end(self) -> None:
        raise Hang("the nemesis has made no progress for 300 s; it is stuck at wait (nemesis.py:62)")


def test_a_hang_of_the_nemesis_ends_the_run_and_is_part_of_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.verify.run.build", lambda *_: Stage())
    said: list[str] = []
    run = SilentRun(Options(seconds=60.0), {}, [], fault_injector=StuckFaultInjector(), say=said.append)
    history = within(20, "the run", run.execute)
    assert len(history.stuck) == 1
    assert "nemesis.py:62" in history.stuck[0]
    assert any("nemesis.py:62" in line for line in said)


def test_a_time_in_which_this_program_could_not_run_does_not_count_as_calm() -> None:
    times = iter([0.0, 0.0, 0.25, 0.5, 42.5, 42.5, 42.75])
    said: list[str] = []
    recorder = Recorder(lambda: next(times))  # the first time is its start
    watch = StallWatch(recorder, said.append)
    for _ in range(4):
        watch.look()
    assert recorder.history.faults == [
        Fault(
            "stall",
            (),
            500_000,
            42_500_000,
            "this program could not run for 42.0 s: the machine was stopped or overloaded",
        )
    ]
    assert said == [recorder.history.faults[0].detail]
    assert longest_calm(0, 43_000_000, recorder.history.faults) == 500_000
