"""The result of a controller rule: changes to the store, and the reply to send once they are committed. Pure."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

R = TypeVar("R")


class Put(NamedTuple):
    """Create or replace a key."""

    key: str
    value: bytes
    ephemeral: bool = False


class Remove(NamedTuple):
    key: str


class Unchanged(NamedTuple):
    """A key that the decision is based on, but does not change."""

    key: str
    created: int = -1
    """The revision at which it was created; -1 for any. A key that was removed and recreated is another key."""


class Decision(NamedTuple, Generic[R]):
    """What to commit, and the reply to send once it is committed.

    The commit succeeds only if the affected keys, and those in `requires`, are unchanged since the image that the
    decision is based on.
    """

    reply: R
    changes: Sequence[Put | Remove] = ()
    requires: Sequence[Unchanged] = ()
