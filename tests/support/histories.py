"""Operations of `ottla verify` histories, for tests that make a history by hand."""

from collections.abc import Mapping, Sequence

from ottla.verify.history import COMMITTED, FINAL, OK, Operation, Read


def final_read(
    contents: Mapping[str, Sequence[tuple[int, int]]], isolation: str = COMMITTED, client: str = "final"
) -> Operation:
    """A final read that found (offset, value) in each partition."""
    return Operation(
        client,
        FINAL,
        polled=[Read(partition, offset, value) for partition, found in contents.items() for offset, value in found],
        outcome=OK,
        isolation=isolation,
        offsets={partition: found[-1][0] + 1 if found else 0 for partition, found in contents.items()},
    )
