"""Protects stored data from a wall clock that jumps forward: what expires by time then expires by the old time first.

A clock that is set a week ahead, by mistake or by a broken time server, must not delete a week of records and offsets
at the next check. While a jump is new, `held_ms` is its size: callers subtract it from the time before they decide
what has expired. The jump is accepted after a grace period, and forgotten if the clock is corrected before.
"""

import json
import logging
from collections.abc import Callable
from typing import NamedTuple

from ottla.clock import BootClock, Clock, utc_text

log = logging.getLogger("ottla.replication")

FILE = "ottla-clock-checkpoint"
JUMP_MS = 3_600_000
"""Smaller steps are accepted at once: corrections by NTP, and what a virtual machine misses while it is migrated."""
DOWNTIME_MS = 86_400_000
"""After a reboot it is unknown how long the machine was off: up to this much counts as that time."""


class SavedClock(NamedTuple):
    """What the next start needs: the clocks at one moment."""

    boot_id: str
    uptime_ms: int
    expected_ms: int
    """The wall time, without a jump that was not accepted yet."""
    grace_left_ms: int
    """How long until such a jump is accepted; 0 if there is none."""


class ClockGuard:
    """Compares the wall clock with the time since the machine started, which includes the time it was suspended."""

    def __init__(self, clock: Clock, boot: BootClock, grace_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._boot = boot
        self._grace_ms = grace_ms
        self._accepted_ahead_ms = clock() - boot.uptime_ms()
        """How far the wall clock was ahead of the uptime before the jump."""
        self._forward_max_ms = JUMP_MS
        self._jump_ms = 0
        self._until_ms: int | None = None
        """When the current jump is accepted, in uptime."""

    def held_ms(self) -> int:
        """How far the clock has jumped forward, if that is not accepted yet; otherwise 0."""
        wall_ms, uptime_ms = self._clock(), self._boot.uptime_ms()
        jump_ms, grace_ms = wall_ms - uptime_ms - self._accepted_ahead_ms, self._grace_ms()
        if not grace_ms or -JUMP_MS <= jump_ms <= self._forward_max_ms:
            if self._until_ms is not None:
                log.warning("clock: the time is now %s; data expires by this time", utc_text(wall_ms))
            self._accept(wall_ms, uptime_ms)
            return 0
        if self._until_ms is None or abs(jump_ms - self._jump_ms) > JUMP_MS:
            self._begin(jump_ms, uptime_ms + grace_ms, wall_ms, uptime_ms)
        assert self._until_ms is not None
        if uptime_ms >= self._until_ms:
            log.warning("clock: %s is accepted now; data expires by this time", utc_text(wall_ms))
            self._accept(wall_ms, uptime_ms)
            return 0
        # After a jump back nothing expires early, so there is nothing to hold. The old time is still remembered: a
        # correction back to it does not count as a jump.
        return max(0, jump_ms)

    def _accept(self, wall_ms: int, uptime_ms: int) -> None:
        self._accepted_ahead_ms = wall_ms - uptime_ms
        self._forward_max_ms = JUMP_MS
        self._jump_ms, self._until_ms = 0, None

    def _begin(self, jump_ms: int, until_ms: int, wall_ms: int, uptime_ms: int) -> None:
        self._jump_ms, self._until_ms = jump_ms, until_ms
        before = utc_text(wall_ms - jump_ms)
        if jump_ms < 0:
            log.warning(
                "clock: it jumped back from %s to %s; data expires later by that much", before, utc_text(wall_ms)
            )
            return
        log.warning(
            "clock: it jumped forward from %s to %s, or this machine was off for that long; until %s, records, "
            "tombstones, committed offsets and transactional ids expire by the old time. If the new time is right "
            "and they should expire now, set ottla.clock.jump.grace.ms=0 (possible at run time)",
            before,
            utc_text(wall_ms),
            utc_text(wall_ms + until_ms - uptime_ms),
        )

    # --- across restarts ----------------------------------------------------------------------------------

    def save(self) -> bytes:
        """The content of the checkpoint file."""
        self.held_ms()
        uptime_ms = self._boot.uptime_ms()
        left_ms = 0 if self._until_ms is None else max(0, self._until_ms - uptime_ms)
        saved = SavedClock(self._boot.boot_id, uptime_ms, uptime_ms + self._accepted_ahead_ms, left_ms)
        return json.dumps({"version": 0, **saved._asdict()}).encode()

    def restore(self, data: bytes) -> None:
        """Continues with what an earlier process saved. Unreadable content is ignored: it is only a safeguard."""
        try:
            fields = json.loads(data)
            saved = SavedClock(*(fields[name] for name in SavedClock._fields))
            numbers = saved[1:]
            if fields["version"] != 0 or not all(type(number) is int for number in numbers):
                raise ValueError(f"unexpected content {fields}")
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s: ignored, because it cannot be read: %s", FILE, error)
            return
        wall_ms, uptime_ms = self._clock(), self._boot.uptime_ms()
        elapsed_ms = 0
        if saved.boot_id and saved.boot_id == self._boot.boot_id:
            elapsed_ms = max(0, uptime_ms - saved.uptime_ms)
        else:
            self._forward_max_ms = DOWNTIME_MS
        self._accepted_ahead_ms = saved.expected_ms + elapsed_ms - uptime_ms
        jump_ms = wall_ms - uptime_ms - self._accepted_ahead_ms
        if saved.grace_left_ms > elapsed_ms and not -JUMP_MS <= jump_ms <= self._forward_max_ms:
            self._begin(jump_ms, uptime_ms + saved.grace_left_ms - elapsed_ms, wall_ms, uptime_ms)
        elif saved.grace_left_ms:
            self._accept(wall_ms, uptime_ms)
