"""How requests of a fetch session are numbered (KIP-227), for brokers, followers and consumers. Pure."""

from ottla.types import INT32_MAX

NO_SESSION = 0
"""The session id of a client without a session."""
INITIAL_EPOCH = 0
"""The epoch of a full fetch: requests a new session and names every partition."""
FINAL_EPOCH = -1
"""The epoch of a full fetch that ends the session and starts none."""


def next_epoch(epoch: int) -> int:
    """The epoch of the next request in a session: 1, 2, … and 1 again after the largest number.

    >>> next_epoch(INITIAL_EPOCH), next_epoch(INT32_MAX)
    (1, 1)
    """
    return 1 if epoch >= INT32_MAX else epoch + 1
