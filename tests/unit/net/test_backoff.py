"""When something that failed is tried again."""

from ottla.net.backoff import Backoff, Retry


def test_the_wait_doubles_with_each_failure_in_a_row_and_a_success_ends_the_row() -> None:
    retry = Retry(Backoff(100, 1_000))
    waits = []
    for _ in range(6):
        retry.failed(now=0)
        waits.append(retry.at)
    assert waits == [100, 200, 400, 800, 1_000, 1_000]
    retry.succeeded()
    retry.failed(now=5_000)
    assert (retry.at, retry.failures) == (5_100, 1)


def test_the_jitter_is_drawn_once_per_failure() -> None:
    draws = iter([1.0, -1.0])
    retry = Retry(Backoff(100, 1_000), lambda: next(draws))
    retry.failed(now=0)
    assert retry.at == 120
    retry.failed(now=0)
    assert retry.at == 160


def test_it_is_due_at_once_until_something_fails() -> None:
    retry = Retry(Backoff(100, 1_000))
    assert retry.is_due(now=0)
    retry.failed(now=0)
    assert not retry.is_due(now=99)
    assert retry.is_due(now=100)
    retry.reset()
    assert retry.is_due(now=0)
    assert retry.failures == 0


def test_an_owner_can_shorten_the_wait_or_pause_without_a_failure() -> None:
    retry = Retry(Backoff(100, 1_000))
    retry.failed(now=0, at_most_ms=20)
    assert (retry.at, retry.failures) == (20, 1)
    retry.pause(now=50)
    assert (retry.at, retry.failures) == (150, 1)
