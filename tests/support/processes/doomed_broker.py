"""`ottla serve` that is killed or stopped inside a metadata commit: with the write lock held, nothing committed.

`python -m tests.support.processes.doomed_broker serve …`; OTTLA_DOOM is `SIGNAL:FILE`. The process sends itself the
signal in the first commit after the file was created, and removes the file right before.
"""

import os
import signal
import sys
import time
from typing import Any

from ottla.cli.main import main
from ottla.metadata.sqlite import operations as sqlite_operations
from ottla.metadata.sqlite import store as sqlite_store


def install(doom: str) -> None:
    name, _, path = doom.partition(":")
    apply = sqlite_operations.apply_operations

    def fatal(*arguments: Any, **options: Any) -> Any:
        result = apply(*arguments, **options)
        if os.path.exists(path):
            os.unlink(path)
            os.kill(os.getpid(), signal.Signals[name])
            # Another thread may take the signal, some time later. This one must not commit until then.
            time.sleep(3600)
        return result

    vars(sqlite_store)["apply_operations"] = fatal


if __name__ == "__main__":
    install(os.environ["OTTLA_DOOM"])
    sys.exit(main(sys.argv[1:]))
