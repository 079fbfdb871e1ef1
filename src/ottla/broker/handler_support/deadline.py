"""The timeout that a request sets for itself."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ottla.errors import ErrorCode, KafkaError

T = TypeVar("T")


async def within(timeout_ms: int, work: Awaitable[T]) -> T:
    """Waits for `work` at most `timeout_ms`; after that the work still continues. No limit for 0 and less."""
    if timeout_ms <= 0:
        return await work
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await asyncio.shield(work)
    except TimeoutError:
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, f"not completed within {timeout_ms} ms; it may still complete"
        ) from None
