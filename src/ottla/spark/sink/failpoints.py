"""Places where a test may stop, fail or kill the sink. Inert unless OTTLA_FAILPOINT is set.

`OTTLA_FAILPOINT=after-decision:stop:/tmp/reached` makes whoever gets to that place first create the file and wait
there, to be killed or until there is a file `/tmp/reached.go`. `fail` makes it raise instead, `kill` ends its process,
and `kill-executor` the Java that the process works for. Several are separated by commas; each happens once.
"""

import os
import signal
import threading

LONGEST_STOP_S = 600
"""Another driver may have to start and do all its work meanwhile."""


def is_set() -> bool:
    return bool(os.environ.get("OTTLA_FAILPOINT"))


def reach(place: str) -> None:
    """Says that the code is at `place`."""
    for wanted in os.environ.get("OTTLA_FAILPOINT", "").split(","):
        name, _, rest = wanted.partition(":")
        if name != place:
            continue
        action, _, path = rest.partition(":")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue  # it has happened
        if action == "fail":
            raise RuntimeError(f"a test asked for a failure at {place}")
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "kill-executor":
            os.kill(_parent(os.getppid()), signal.SIGKILL)
        waiting = threading.Event()
        for _ in range(LONGEST_STOP_S * 20):
            if os.path.exists(f"{path}.go"):
                break
            waiting.wait(0.05)


def _parent(pid: int) -> int:
    """Java starts a daemon, and the daemon starts the workers."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[1])
