"""OWNER of the in-sync sets that this broker's leaders propose: the proposals of one tick are committed together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.controller.elections import MAX_CHANGES
from ottla.metadata.controller.isr_changes import IsrChange

Commit = Callable[[Sequence[IsrChange]], Awaitable[list[ErrorCode]]]


class IsrProposals:
    """Collects proposals and commits them in chunks."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._waiting: list[tuple[IsrChange, asyncio.Future[ErrorCode]]] = []
        self._committing: asyncio.Task[None] | None = None

    async def propose(self, change: IsrChange) -> ErrorCode:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ErrorCode] = loop.create_future()
        self._waiting.append((change, answer))
        if self._committing is None:
            self._committing = loop.create_task(self._commit_all())
        return await answer

    async def _commit_all(self) -> None:
        try:
            while self._waiting:
                chunk, self._waiting = self._waiting[:MAX_CHANGES], self._waiting[MAX_CHANGES:]
                results = await self._outcomes([change for change, _ in chunk])
                for (_, answer), result in zip(chunk, results, strict=True):
                    if not answer.done():
                        answer.set_result(result)
        finally:
            self._committing = None

    async def _outcomes(self, changes: Sequence[IsrChange]) -> list[ErrorCode]:
        try:
            return await self._commit(changes)
        except KafkaError as error:
            # Unknown whether they were applied.
            return [error.code] * len(changes)

    async def stop(self) -> None:
        """Waits for the commit in progress."""
        if self._committing is not None:
            await asyncio.wait([self._committing])
