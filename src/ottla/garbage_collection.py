"""Pauses the garbage collector while many objects are created that all stay alive."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Without reference cycles there is no garbage, and each collection would visit all the new objects in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
