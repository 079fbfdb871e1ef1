"""Places where a test may stop or fail the sink. Inert unless OTTLA_FAILPOINT is set.

`OTTLA_FAILPOINT=after-decision:stop:/tmp/reached` makes whoever gets to that place first create the file and wait
there to be killed; `fail` in place of `stop` makes it raise, once. A number after the name picks the n-th visit.
"""

import os
import threading

_visits: dict[str, int] = {}


def reach(place: str) -> None:
    """Says that the code is at `place`."""
    wanted = os.environ.get("OTTLA_FAILPOINT")
    if not wanted:
        return
    name, action, path = wanted.split(":", 2)
    name, _, number = name.partition("#")
    if name != place:
        return
    _visits[place] = _visits.get(place, 0) + 1
    if number and _visits[place] != int(number):
        return
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return  # it has happened
    if action == "fail":
        raise RuntimeError(f"a test asked for a failure at {place}")
    threading.Event().wait(120)
