"""Turns on the event loop: each iteration gives every waiting connection at most one, within a time limit."""

import asyncio

import pytest

from ottla.net.server.turns import MAX_ITERATION_MS, Turns
from ottla.testing.sim_loop import SimLoop


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_work_that_continues_gets_one_turn_per_iteration(names: str) -> None:
    async def story() -> None:
        turns, done = Turns(asyncio.get_running_loop(), 1.0), dict.fromkeys(names, 0)

        def work(name: str) -> None:
            done[name] += 1
            if done[name] < 1000:
                turns.queue(lambda: work(name))

        for name in names:
            work(name)
        for iteration in range(2, 50):
            await asyncio.sleep(0)
            assert done == dict.fromkeys(names, iteration)

    SimLoop().run(story())


def test_an_iteration_has_a_time_limit_and_the_rest_keeps_its_order() -> None:
    async def story() -> None:
        turns, now, order = Turns(asyncio.get_running_loop(), 1.0), [0.0], list[int]()
        turns.clock = lambda: now[0]

        def slow(number: int) -> None:
            order.append(number)
            now[0] += MAX_ITERATION_MS / 1000 / 2

        for number in range(5):
            turns.queue(lambda number=number: slow(number))  # type: ignore[misc]
        assert order == []
        for expected in (2, 4, 5, 5):
            await asyncio.sleep(0)
            assert order == list(range(expected))

    SimLoop().run(story())


def test_work_that_fails_does_not_stop_the_others() -> None:
    loop = SimLoop()
    errors: list[object] = []
    loop.set_exception_handler(lambda loop, context: errors.append(context["exception"]))

    async def story() -> None:
        turns, order = Turns(asyncio.get_running_loop(), 1.0), list[str]()

        def fail() -> None:
            raise ZeroDivisionError

        turns.queue(fail)
        turns.queue(lambda: order.append("next"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert order == ["next"]

    loop.run(story())
    assert [type(error) for error in errors] == [ZeroDivisionError]
