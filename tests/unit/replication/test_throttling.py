"""The quota of throttled replicas: an average over a sliding window, and who it concerns."""

import pytest

from ottla.replication.throttling import SAMPLE_MS, WINDOW_MS, ReplicationQuota, names_replica
from ottla.types import INT64_MAX


def copy(quota: ReplicationQuota, *, chunk: int, start_ms: int, duration_ms: int) -> int:
    """Copies as fast as the quota allows. Returns how many bytes."""
    now, copied = start_ms, 0
    while now < start_ms + duration_ms:
        wait_ms = quota.wait_ms(now)
        if wait_ms:
            now += wait_ms
        else:
            quota.record(chunk, now)
            copied += chunk
    return copied


@pytest.mark.parametrize("rate", [10_000, 1_000_000, 250_000_000])
@pytest.mark.parametrize("part", [0.01, 0.3, 1])
def test_the_average_is_the_rate(rate: int, part: float) -> None:
    quota = ReplicationQuota(rate)
    copied = copy(quota, chunk=int(rate * part), start_ms=5_000, duration_ms=60_000)
    assert copied == pytest.approx(rate * 60, rel=0.1)


def test_a_pause_does_not_allow_a_burst_afterwards() -> None:
    quota = ReplicationQuota(1_000)
    copy(quota, chunk=100, start_ms=0, duration_ms=20_000)
    assert copy(quota, chunk=100, start_ms=500_000, duration_ms=1) <= 1_100


def test_bytes_copied_before_the_window_do_not_count() -> None:
    quota = ReplicationQuota(1_000)
    quota.record(1_000_000, 0)
    assert quota.wait_ms(WINDOW_MS) == SAMPLE_MS
    assert quota.wait_ms(WINDOW_MS + SAMPLE_MS) == 0


def test_the_wait_ends_when_there_is_room() -> None:
    quota = ReplicationQuota(1_000)
    quota.record(1_500, 7_000)
    assert quota.wait_ms(7_000) == SAMPLE_MS
    assert quota.wait_ms(8_400) == 100
    assert quota.wait_ms(8_500) == 0


def test_without_a_limit_nothing_waits_and_nothing_is_counted() -> None:
    quota = ReplicationQuota()
    quota.record(INT64_MAX, 0)
    assert not quota.is_limited
    assert quota.wait_ms(0) == 0
    quota.set_rate(1_000)
    assert quota.is_limited
    assert quota.wait_ms(0) == 0


def test_a_new_rate_starts_a_new_window() -> None:
    quota = ReplicationQuota(1_000_000)
    quota.record(1_000_000, 0)
    quota.set_rate(10)
    assert quota.wait_ms(1) == 0
    quota.record(1_000, 1)
    quota.set_rate(10)
    assert quota.wait_ms(1) == SAMPLE_MS, "the same rate changes nothing"


def test_a_rate_of_zero_allows_nothing() -> None:
    quota = ReplicationQuota(0)
    assert quota.wait_ms(0) == quota.wait_ms(1 << 40) == SAMPLE_MS
    quota.record(5, 1 << 40)  # Of a replica in sync, which does not wait.
    assert quota.wait_ms(1 << 40) == SAMPLE_MS


def test_a_setting_names_replicas_or_all() -> None:
    assert not names_replica((), 0, 1)
    assert names_replica(("*",), 7, 3)
    assert names_replica(("0:1", "1:2"), 1, 2)
    assert not names_replica(("0:1", "1:2"), 1, 1)
    assert not names_replica(("0:11",), 0, 1)
