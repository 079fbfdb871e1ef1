"""The attackers' process: runs the chosen attacks at the same time, within their numbers, and reports counts.

    python -m tests.support.hostile.attackers BOOTSTRAP JSON

JSON has `attacks`, `seconds` and `numbers`. The process creates its topics, prints `ready`, waits for a line on its
standard input, attacks, and prints its counts and CPU seconds as JSON.
"""

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable

from tests.support.hostile import bombs, connections, groups, readers, strangers, topics
from tests.support.hostile.battlefield import Battlefield, Numbers, raise_file_limit
from tests.support.hostile.topics_used import prepare

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
GRACE_S = 40.0
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

    async with asyncio.timeout(field.seconds + GRACE_S):
        await asyncio.gather(*map(one, names))


def main(bootstrap: str, options: str) -> None:
    chosen = json.loads(options)
    # The broker and the normal client go first: a measurement of the broker, not of the load generator.
    os.nice(10)
    raise_file_limit()
    numbers = Numbers(**chosen["numbers"])
    prepare(bootstrap, numbers.large_topic_mb)
    print("ready", flush=True)
    sys.stdin.readline()
    field = Battlefield(bootstrap, numbers, chosen["seconds"])
    before = time.process_time()
    try:
        import uvloop

        uvloop.run(attack(field, chosen["attacks"]))
    except TimeoutError:
        field.counts["attackers: did not end in time"] += 1
    print(json.dumps({"counts": dict(field.counts), "cpu_seconds": time.process_time() - before}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
