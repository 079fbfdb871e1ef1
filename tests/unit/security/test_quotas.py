"""Which quota applies to a client, how its rate is measured, and how long it has to pause."""

import doctest

import pytest

from ottla.security import quota_entities
from ottla.security.quota_entities import QuotaEntity
from ottla.security.quotas import MAX_METERS, ClientQuotas, Limit, Rate, TokenBucket, Window

PRODUCER, REQUEST, MUTATION = "producer_byte_rate", "request_percentage", "controller_mutation_rate"
NOW = 1_000_000


def test_the_examples_in_docstrings_work() -> None:
    assert doctest.testmod(quota_entities).failed == 0


# Which quota applies

LEVELS = [
    (QuotaEntity(user="u", client_id="c"), ("u", "c")),
    (QuotaEntity(user="u", client_id=""), ("u", "c")),
    (QuotaEntity(user="u"), ("u", "")),
    (QuotaEntity(user="", client_id="c"), ("u", "c")),
    (QuotaEntity(user="", client_id=""), ("u", "c")),
    (QuotaEntity(user=""), ("u", "")),
    (QuotaEntity(client_id="c"), ("", "c")),
    (QuotaEntity(client_id=""), ("", "c")),
]
"""Kafka's order of precedence, and who shares each quota."""


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_quota_applies(first: int) -> None:
    quotas = ClientQuotas()
    quotas.apply({entity: {PRODUCER: 100.0 + level} for level, (entity, _) in enumerate(LEVELS) if level >= first})
    assert quotas.limits("u", "c").produce == Limit(PRODUCER, 100.0 + first, *LEVELS[first][1])


def test_each_quota_is_looked_up_on_its_own() -> None:
    quotas = ClientQuotas()
    quotas.apply({QuotaEntity(user="u", client_id="c"): {REQUEST: 5.0}, QuotaEntity(user="u"): {PRODUCER: 7.0}})
    limits = quotas.limits("u", "c")
    assert limits.produce is not None
    assert limits.produce.bound == 7.0
    assert limits.request is not None
    assert limits.fetch is limits.mutation is None
    assert quotas.limits("other", "c") == (None, None, None, None)


def test_a_quota_of_a_user_is_shared_by_all_clients_of_the_user() -> None:
    quotas = ClientQuotas()
    quotas.apply({QuotaEntity(user="u"): {PRODUCER: 100.0}})
    first, second = quotas.limits("u", "c1").produce, quotas.limits("u", "c2").produce
    assert first is not None
    assert second is not None
    assert quotas.record(first, 1000, NOW) == 0
    assert quotas.record(second, 1000, NOW) == 10_000


def test_a_changed_quota_keeps_what_was_measured() -> None:
    quotas = ClientQuotas()
    quotas.apply({QuotaEntity(user="u"): {PRODUCER: 1000.0}})
    limit = quotas.limits("u", "c").produce
    assert limit is not None
    assert quotas.record(limit, 10_000, NOW) == 0
    quotas.apply({QuotaEntity(user="u"): {PRODUCER: 500.0}})
    lower = quotas.limits("u", "c").produce
    assert lower is not None
    assert quotas.throttle_ms(lower, NOW) == 10_000


# Rates


def test_a_burst_is_measured_over_ten_seconds_at_least() -> None:
    rate = Rate(Window(), NOW)
    rate.record(20_000, NOW)
    assert rate.measure(NOW) == (2000.0, 10_000)
    assert rate.throttle_ms(2000, NOW) == 0
    assert rate.throttle_ms(1000, NOW) == 10_000
    # It counts until it leaves the window.
    assert rate.throttle_ms(1000, NOW + 10_999) > 0
    assert rate.throttle_ms(1000, NOW + 11_000) == 0


def test_the_window_slides() -> None:
    rate = Rate(Window(), NOW)
    for second in range(30):
        rate.record(1000, NOW + second * 1000)
    value, over_ms = rate.measure(NOW + 29_500)
    assert over_ms == 10_500
    assert value == pytest.approx(11_000 * 1000 / 10_500)
    assert rate.measure(NOW + 60_000) == (0.0, 10_000)


def test_a_client_that_obeys_its_pauses_gets_exactly_its_rate() -> None:
    rate, now, sent = Rate(Window(), NOW), NOW, 0
    while now < NOW + 120_000:
        rate.record(16_000, now)
        sent += 16_000
        now += 10 + rate.throttle_ms(50_000, now)
    assert sent / 120 == pytest.approx(50_000, rel=0.1)


def test_a_response_that_was_not_admitted_does_not_count() -> None:
    quotas = ClientQuotas()
    limit = Limit("consumer_byte_rate", 100.0, "u", "")
    assert quotas.admit(limit, 900, NOW) == 0
    assert quotas.admit(limit, 900, NOW) == 8000
    assert quotas.admit(limit, 100, NOW) == 0


def test_a_response_that_no_window_can_hold_is_admitted_after_silence() -> None:
    """It could never be sent otherwise: a batch may be larger than the quota of a window."""
    quotas = ClientQuotas()
    limit = Limit("consumer_byte_rate", 100.0, "u", "")
    assert quotas.window_share(limit) == 1000
    assert quotas.admit(limit, 5000, NOW) == 0
    assert quotas.admit(limit, 5000, NOW + 5000) > 0
    assert quotas.admit(limit, 5000, NOW + 11_000) == 0


def test_time_on_the_processor_pauses_a_client_for_one_second_at_most() -> None:
    quotas = ClientQuotas()
    limit = Limit(REQUEST, 1.0, "u", "")
    assert quotas.record(limit, 5000, NOW) == 1000
    assert quotas.record(Limit(PRODUCER, 1.0, "u", ""), 5000, NOW) > 1_000_000


# Token buckets


def test_changes_may_come_in_a_burst_that_is_paid_back() -> None:
    """KIP-599: the bucket holds what comes in a window, and may be overdrawn once."""
    quotas = ClientQuotas()
    limit = Limit(MUTATION, 2.0, "u", "")
    assert quotas.draw(limit, 30, NOW, strict=True) == 0
    assert quotas.draw(limit, 1, NOW, strict=True) == 4000
    assert quotas.draw(limit, 1, NOW + 3_999, strict=True) == 1
    assert quotas.draw(limit, 1, NOW + 4_000, strict=True) == 0


def test_an_old_client_makes_its_changes_and_pauses_afterwards() -> None:
    quotas = ClientQuotas()
    limit = Limit(MUTATION, 1.0, "u", "")
    assert quotas.draw(limit, 11, NOW, strict=False) == 0
    assert quotas.draw(limit, 5, NOW, strict=False) == 5000
    assert quotas.draw(limit, 5, NOW, strict=False) == 10_000


# Memory


def test_many_client_ids_do_not_fill_the_memory() -> None:
    quotas = ClientQuotas()
    quotas.apply({QuotaEntity(client_id=""): {PRODUCER: 100.0}})
    for number in range(3 * MAX_METERS):
        limit = quotas.limits("u", f"client-{number}").produce
        assert limit is not None
        quotas.record(limit, 10, NOW)
    assert quotas.meter_count == MAX_METERS
    assert len(quotas._limits) == MAX_METERS, "the cache has a limit"  # noqa: SLF001


def test_a_silent_client_is_forgotten_only_when_nothing_is_left_of_its_rate() -> None:
    quotas = ClientQuotas()
    rate, bucket = Limit(PRODUCER, 1.0, "u", ""), Limit(MUTATION, 1.0, "u", "")
    quotas.record(rate, 10_000_000, NOW)
    quotas.draw(bucket, 1000, NOW, strict=True)
    quotas.record(Limit(PRODUCER, 1.0, "other", ""), 1, NOW + 10_999)
    assert quotas.meter_count == 3
    quotas.record(Limit(PRODUCER, 1.0, "third", ""), 1, NOW + 30_000)
    # The rates are gone, the overdrawn bucket is not.
    assert quotas.meter_count == 2
    assert quotas.throttle_ms(bucket, NOW + 30_000) > 900_000
    assert TokenBucket(Window(), 1.0, NOW).is_idle(NOW + 11_000)
