"""When a jump of the wall clock is held back, and for how long."""

import logging

import pytest

from ottla.clock import BootClock
from ottla.replication.clock_guard import DOWNTIME_MS, JUMP_MS, ClockGuard

NOON = 1_700_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Machine:
    """A machine with a settable clock, and the broker process that runs on it."""

    def __init__(self, grace_ms: int = DAY) -> None:
        self.grace_ms = grace_ms
        self.uptime_ms = 5 * MINUTE
        self.ahead_ms = NOON
        self.boots = 1
        self.saved: bytes | None = None
        self.start()

    def wall(self) -> int:
        return self.ahead_ms + self.uptime_ms

    def start(self) -> None:
        boot = BootClock(f"boot {self.boots}", lambda: self.uptime_ms)
        self.guard = ClockGuard(self.wall, boot, lambda: self.grace_ms)
        if self.saved is not None:
            self.guard.restore(self.saved)

    def stop(self) -> None:
        self.saved = self.guard.save()

    def restart(self, down_ms: int = 0) -> None:
        self.stop()
        self.passes(down_ms)
        self.start()

    def reboot(self, off_ms: int = 0, rtc_error_ms: int = 0) -> None:
        """The machine is off; its clock continues, with an error."""
        self.stop()
        self.ahead_ms += off_ms + rtc_error_ms + self.uptime_ms - MINUTE
        self.uptime_ms = MINUTE
        self.boots += 1
        self.start()

    def passes(self, milliseconds: int) -> None:
        self.uptime_ms += milliseconds

    def jumps(self, milliseconds: int) -> None:
        self.ahead_ms += milliseconds

    @property
    def held_ms(self) -> int:
        return self.guard.held_ms()


@pytest.mark.parametrize("step_ms", [-JUMP_MS, -2_000, 2_000, JUMP_MS])
def test_small_steps_are_accepted_at_once_and_silently(step_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    for _ in range(30):
        machine.passes(5 * MINUTE)
        machine.jumps(step_ms)
        assert machine.held_ms == 0
    assert not caplog.records


def test_a_jump_forward_is_held_for_the_grace_period_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.passes(HOUR)
    machine.jumps(7 * DAY)
    for _ in range(23):
        assert machine.held_ms == 7 * DAY
        machine.passes(HOUR)
    (warning,) = caplog.messages
    assert "from 2023-11-14 23:18:20 UTC to 2023-11-21 23:18:20 UTC" in warning
    assert "until 2023-11-22 23:18:20 UTC, records, tombstones, committed offsets and transactional ids" in warning
    assert "ottla.clock.jump.grace.ms=0" in warning
    machine.passes(HOUR)
    assert machine.held_ms == 0
    assert len(caplog.messages) == 2
    assert "accepted" in caplog.messages[1]
    machine.passes(HOUR)
    assert machine.held_ms == 0
    assert len(caplog.messages) == 2


def test_while_a_jump_is_held_the_old_time_continues() -> None:
    machine = Machine()
    before = machine.wall()
    machine.jumps(7 * DAY)
    machine.passes(2 * HOUR)
    assert machine.wall() - machine.held_ms == before + 2 * HOUR


def test_a_clock_that_is_corrected_is_used_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.jumps(7 * DAY)
    assert machine.held_ms
    machine.jumps(-7 * DAY + 3_000)
    assert machine.held_ms == 0
    assert "data expires by this time" in caplog.messages[-1]
    machine.jumps(7 * DAY)
    assert machine.held_ms == 7 * DAY, "the next jump is a new one"


def test_a_second_jump_has_its_own_grace_period() -> None:
    machine = Machine()
    machine.jumps(7 * DAY)
    assert machine.held_ms == 7 * DAY
    machine.passes(20 * HOUR)
    machine.jumps(7 * DAY)
    assert machine.held_ms == 14 * DAY
    machine.passes(20 * HOUR)
    assert machine.held_ms == 14 * DAY
    machine.passes(4 * HOUR)
    assert machine.held_ms == 0


def test_the_correction_of_a_jump_back_is_not_a_jump(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.jumps(-30 * DAY)
    assert machine.held_ms == 0
    assert "jumped back" in caplog.text
    machine.passes(HOUR)
    machine.jumps(30 * DAY)
    assert machine.held_ms == 0
    assert "jumped forward" not in caplog.text


def test_a_jump_back_is_accepted_after_the_grace_period_too() -> None:
    machine = Machine()
    machine.jumps(-30 * DAY)
    assert machine.held_ms == 0
    machine.passes(DAY)
    assert machine.held_ms == 0
    machine.jumps(30 * DAY)
    assert machine.held_ms == 30 * DAY


def test_without_a_grace_period_the_clock_is_trusted(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(grace_ms=0)
    machine.jumps(7 * DAY)
    assert machine.held_ms == 0
    assert not caplog.records


def test_the_grace_period_can_be_ended_while_a_jump_is_held() -> None:
    machine = Machine()
    machine.jumps(7 * DAY)
    assert machine.held_ms
    machine.grace_ms = 0
    assert machine.held_ms == 0
    machine.grace_ms = DAY
    assert machine.held_ms == 0, "the jump was accepted"


# --- restarts -----------------------------------------------------------------------------------------------


def test_the_time_a_broker_was_down_is_no_jump(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.restart(down_ms=7 * DAY)
    assert machine.held_ms == 0
    assert not caplog.records


def test_a_clock_that_was_set_while_the_broker_was_down_has_jumped() -> None:
    machine = Machine()
    machine.stop()
    machine.passes(2 * HOUR)
    machine.jumps(7 * DAY)
    machine.start()
    assert machine.held_ms == 7 * DAY


@pytest.mark.parametrize("rebooted", [False, True], ids=["same boot", "rebooted"])
def test_a_restart_neither_ends_nor_restarts_the_grace_period(rebooted: bool) -> None:
    machine = Machine()
    machine.jumps(7 * DAY)
    assert machine.held_ms == 7 * DAY
    for _ in range(3):
        machine.passes(6 * HOUR)
        assert machine.held_ms == 7 * DAY
        machine.reboot() if rebooted else machine.restart()
        assert machine.held_ms == 7 * DAY
    machine.passes(6 * HOUR)
    assert machine.held_ms == 0


def test_the_time_a_broker_is_down_counts_as_grace() -> None:
    machine = Machine()
    machine.jumps(7 * DAY)
    assert machine.held_ms
    machine.restart(down_ms=12 * HOUR)
    machine.passes(12 * HOUR - 1)
    assert machine.held_ms == 7 * DAY
    machine.passes(1)
    assert machine.held_ms == 0


def test_a_grace_period_that_ends_while_the_broker_is_down_is_over() -> None:
    machine = Machine()
    machine.jumps(7 * DAY)
    assert machine.held_ms
    machine.restart(down_ms=DAY)
    assert machine.held_ms == 0


def test_a_clock_that_is_corrected_while_the_broker_is_down_is_right() -> None:
    machine = Machine()
    machine.jumps(7 * DAY)
    assert machine.held_ms
    machine.stop()
    machine.jumps(-7 * DAY)
    machine.start()
    assert machine.held_ms == 0
    machine.passes(5 * MINUTE)
    machine.jumps(7 * DAY)
    assert machine.held_ms == 7 * DAY


def test_up_to_a_day_after_a_reboot_is_taken_for_the_time_the_machine_was_off(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.reboot(off_ms=DOWNTIME_MS)
    assert machine.held_ms == 0
    assert not caplog.records
    machine.jumps(2 * HOUR)
    assert machine.held_ms == 2 * HOUR, "from then on jumps are seen as before"


def test_more_than_a_day_after_a_reboot_may_be_a_wrong_clock(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.reboot(off_ms=10 * MINUTE, rtc_error_ms=30 * DAY)
    assert machine.held_ms == 30 * DAY + 10 * MINUTE
    assert "or this machine was off for that long" in caplog.text


def test_a_machine_that_starts_in_the_past_and_is_corrected_has_not_jumped(caplog: pytest.LogCaptureFixture) -> None:
    """A board without a battery starts in 1970, until it reaches its time server."""
    machine = Machine()
    machine.reboot(off_ms=3 * HOUR, rtc_error_ms=-NOON)
    assert machine.held_ms == 0
    machine.passes(2 * MINUTE)
    machine.jumps(NOON)
    assert machine.held_ms == 0
    assert "jumped forward" not in caplog.text


UNREADABLE = [
    b"",
    b"{}",
    b"nonsense",
    b"[]",
    b'{"version":1,"boot_id":"x","uptime_ms":7,"expected_ms":1,"grace_left_ms":0}',
    b'{"version":0,"boot_id":"x","uptime_ms":"7","expected_ms":1,"grace_left_ms":0}',
]


@pytest.mark.parametrize("content", UNREADABLE)
def test_a_file_that_cannot_be_read_is_ignored(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level(logging.WARNING):
        machine.guard.restore(content)
    assert "cannot be read" in caplog.text
    assert machine.held_ms == 0
