"""The attackers' process: runs the chosen attacks at the same time, within their numbers, and reports counts.

    python -m tests.support.hostile.attackers BOOTSTRAP JSON

JSON has `attacks`, `seconds` and `numbers`. The process creates its topics, prints `ready`, waits for a line on its
standard input, attacks, prints `over` and, after the last responses, its counts and CPU seconds as JSON.
"""

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable

from tests.support.hostile import bombs, connections, groups, readers, strangers, topics
from tests.support.hostile.battlefield import LATE_S, Battlefield, Numbers, raise_file_limit
from tests.support.hostile.topics_used import prepare
from tests.support.waiting import slowness

ATTACKS: dict[str, Callable[[Battlefield], Awaitable[None]]] = {
    "idle": connections.idle,
    "partial": connections.partial,
    "non-readers": readers.non_readers,
    "fetch-and-reset": readers.fetch_and_reset,
    "bombs": bombs.bombs,
    "groups": groups.groups,
    "garbage": connections.garbage,
    "churn": connections.churn,
    "topics": topics.topics,
    "strangers": strangers.strangers,
}
BUSY = 4.0
"""On a machine with more work than this, attackers that let others go first would never attack."""
GRACE_S = 120.0
"""For the last responses after the end of a run."""


async def attack(field: Battlefield, names: list[str]) -> None:
    field.start()

    async def one(name: str) -> None:
        try:
            await ATTACKS[name](field)
        except Exception:
            # One broken attack must not hide the others; the runner reports it.
            field.counts[f"{name}: broken"] += 1
            traceback.print_exc()

    async def announce_the_end() -> None:
        while field.goes_on:
            await field.pause(0.1)
        print("over", flush=True)

    async with asyncio.timeout(field.seconds + LATE_S + GRACE_S):
        await asyncio.gather(announce_the_end(), *map(one, names))


def main(bootstrap: str, options: str) -> None:
    chosen = json.loads(options)
    if slowness() < BUSY:
        # The broker and the normal client go first: a measurement of the broker, not of the load generator.
        os.nice(10)
    raise_file_limit()
    numbers = Numbers(**chosen["numbers"])
    prepare(bootstrap, numbers.large_topic_mb)
    print("ready", flush=True)
    sys.stdin.readline()
    field = Battlefield(bootstrap, numbers, chosen["seconds"], chosen["attacks"])
    before = time.process_time()
    try:
        import uvloop

        uvloop.run(attack(field, chosen["attacks"]))
    except TimeoutError:
        field.counts["attackers: did not end in time"] += 1
    print(json.dumps({"counts": dict(field.counts), "cpu_seconds": time.process_time() - before}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
