"""How much memory the members of groups take with their metadata. Pure."""

Protocols = list[tuple[str, bytes]]
"""(name, metadata) in a member's order of preference."""

MEMBER_BYTES = 500
PROTOCOL_BYTES = 150
"""What a member and each protocol it offers take in memory, besides the bytes that the client sent."""


def size_of(protocols: Protocols) -> int:
    """The memory that a member with these protocols takes.

    >>> size_of([("range", b"abc")])
    658
    """
    return MEMBER_BYTES + sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


class MetadataUsage:
    """The memory that the members of all groups of a shard take."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0
