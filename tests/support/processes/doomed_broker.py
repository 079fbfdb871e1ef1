"""`ottla serve` that is killed or stopped inside a metadata commit: with the write lock held, nothing committed.

`python -m tests.support.processes.doomed_broker serve …`; OTTLA_DOOM is `SIGNAL:FILE`. The process sends itself the
signal in the first commit after the file was created, and removes the file right before.
"""

import os
import signal
import sys
from typing import Any

from ottla.cli.main import main
from ottla.metadata.sqlite_store import SqliteStore


def install(doom: str) -> None:
    name, _, path = doom.partition(":")
    apply = SqliteStore._apply  # noqa: SLF001

    def fatal(self: SqliteStore, *arguments: Any) -> None:
        apply(self, *arguments)
        if os.path.exists(path):
            os.unlink(path)
            os.kill(os.getpid(), signal.Signals[name])

    SqliteStore._apply = fatal  # type: ignore[method-assign, assignment] # noqa: SLF001


if __name__ == "__main__":
    install(os.environ["OTTLA_DOOM"])
    sys.exit(main(sys.argv[1:]))
