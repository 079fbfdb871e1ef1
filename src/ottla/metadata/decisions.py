"""What the controller hands to the follower: changes to the store, and the reply once they are committed. Pure."""

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


class Decision(NamedTuple, Generic[R]):
    """What to commit, and what to answer once it is committed.

    Changes are committed on the condition that the keys they touch are as they were in the image the decision
    was made from.
    """

    reply: R
    changes: Sequence[Put | Remove] = ()
