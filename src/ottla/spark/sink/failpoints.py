"""Named places in the sink where a test or the demo can stop, fail or kill it. No-ops unless OTTLA_FAILPOINT is set.

`OTTLA_FAILPOINT=after-decision:stop:/tmp/reached` makes the first process that reaches that place create the file
/tmp/reached with its process id and wait there until it is killed or the file /tmp/reached.go exists. In a task,
`after-prepare@orders:stop:...` means only a sink that writes to the topic `orders`. The actions:

    stop            blocks the calling thread
    hold            suspends the calling coroutine only; everything else in the process continues
    fail            raises RuntimeError
    kill            kills the process
    kill-executor   kills the JVM that the Python worker belongs to

Several are separated by commas. Each fires once: its file marks that it did, and removing the file arms it again. The
sink calls these functions unconditionally: it has no separate code path for tests.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

VARIABLE = "OTTLA_FAILPOINT"
LONGEST_STOP_S = 600
"""How long to block: another driver may have to start and finish its work meanwhile."""
POLL_S = 0.05
BLOCKING_ACTIONS = ("stop", "fail", "kill", "kill-executor")


def failpoint(place: str, topic: str | None = None) -> None:
    """Marks a place in code that runs in a thread, and the topic that is written there."""
    for action, path in _taken(place, BLOCKING_ACTIONS, topic):
        _act(action, path, place)


async def async_failpoint(place: str) -> None:
    """Marks a place in a coroutine. The only place where `hold` can be used."""
    for action, path in _taken(place, (*BLOCKING_ACTIONS, "hold")):
        if action != "hold":
            _act(action, path, place)
            continue
        for _ in range(int(LONGEST_STOP_S / POLL_S)):
            if os.path.exists(f"{path}.go"):  # noqa: ASYNC240 - one stat of a local file, in tests only
                break
            await asyncio.sleep(POLL_S)


def _taken(place: str, actions: tuple[str, ...], topic: str | None = None) -> Iterator[tuple[str, str]]:
    """The actions that are set for this place and have not fired yet; each is marked as fired."""
    configured = os.environ.get(VARIABLE)
    for wanted in configured.split(",") if configured else ():
        name, action, path = wanted.split(":", 2)
        if name not in (place, f"{place}@{topic}"):
            continue
        if action not in actions:
            raise ValueError(f"OTTLA_FAILPOINT: unknown action {action} at {place} (known: {', '.join(actions)})")
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            continue  # it has fired
        os.write(file, str(os.getpid()).encode())
        os.close(file)
        yield action, path


def _act(action: str, path: str, place: str) -> None:
    if action == "fail":
        raise RuntimeError(f"failpoint {place}: fail")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "kill-executor":
        os.kill(_parent(os.getppid()), signal.SIGKILL)
    waiting = threading.Event()
    for _ in range(int(LONGEST_STOP_S / POLL_S)):
        if os.path.exists(f"{path}.go"):
            break
        waiting.wait(POLL_S)


def _parent(pid: int) -> int:
    """The JVM starts a daemon, and the daemon forks the workers."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[1])
