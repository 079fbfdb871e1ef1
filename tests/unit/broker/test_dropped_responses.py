"""A connection that closes drops the responses it has not awaited. No coroutine is left behind."""

import asyncio
import gc
import warnings
from typing import Any

import pytest

from ottla.broker.handler_support.later import Later
from ottla.broker.handler_support.transactions.transaction_requests import Codes, answer_with
from ottla.broker.handlers.add_partitions_to_txn import _pack_later
from ottla.errors import ErrorCode, KafkaError
from ottla.testing import SimLoop


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_an_awaitable_starts_when_it_is_awaited() -> None:
    started = []

    async def work() -> str:
        started.append(1)
        return "done"

    dropped = Later(work)
    awaited = Later(work)

    async def main() -> str:
        return await awaited

    del dropped
    assert started == []
    assert SimLoop(1).run(main()) == "done"
    assert started == [1]


def test_a_response_of_the_transaction_coordinator_can_be_dropped() -> None:
    def submit() -> asyncio.Future[int]:
        return asyncio.get_running_loop().create_future()

    def pack(reply: int) -> Codes:
        return {}

    def refuse(code: ErrorCode) -> Codes:
        return {}

    async def main() -> None:
        answer_with(submit, pack, refuse)
        codes = answer_with(submit, pack, refuse)
        assert not isinstance(codes, dict)
        _pack_later(codes).close()

    SimLoop(1).run(main())


@pytest.mark.parametrize(("code", "expected"), [(None, "42"), (ErrorCode.PRODUCER_FENCED, "fenced")])
def test_an_awaited_response_is_encoded_or_raises(code: ErrorCode | None, expected: str) -> None:
    async def main() -> str:
        reply: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer = answer_with(lambda: reply, str, lambda refused: "fenced" if refused is code else "?")
        assert not isinstance(answer, str)
        if code is None:
            reply.set_result(42)
        else:
            reply.set_exception(KafkaError(code))
        return await answer

    assert SimLoop(1).run(main()) == expected
