"""The phases of TLS on a server connection and every transition between them. Pure.

Whether the socket is open is not one of them: only its transport knows.
"""

import enum
from functools import partial

from ottla.checks import moved


class Phase(enum.IntEnum):
    """Ordered: from SECURED on, the handshake has succeeded."""

    NEW = 0
    """The client has not begun the handshake."""
    HANDSHAKING = 1
    """The client has begun the handshake and not finished it."""
    FAILED = 2
    """The handshake failed, which is logged and counted. The socket is about to close."""
    SECURED = 3
    """Requests are decrypted, responses are encrypted."""
    ENDED = 4
    """The client has sent close_notify: nothing follows, but it can still receive responses."""
    BROKEN = 5
    """After an error, OpenSSL decrypts and encrypts nothing more."""


NEW, HANDSHAKING, FAILED, SECURED, ENDED, BROKEN = Phase
"""Module-level names: reading an enum's member through its class costs twice as much on every delivery."""

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    # Not to SECURED: a client cannot finish the handshake before it has received our part of it.
    NEW: frozenset({HANDSHAKING, FAILED}),
    HANDSHAKING: frozenset({SECURED, FAILED}),
    FAILED: frozenset(),
    SECURED: frozenset({ENDED, BROKEN}),
    ENDED: frozenset(),
    BROKEN: frozenset(),
}

move = partial(moved, TRANSITIONS, "TLS on a server connection")
