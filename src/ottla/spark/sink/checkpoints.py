"""What Spark wrote about a batch into the query's checkpoint, if that is a directory the driver can read."""

import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_path(location: str) -> Path | None:
    """The directory of a local location; None for s3:, hdfs: and the like.

    As for Spark, what is before a colon is a scheme, unless a slash precedes the colon.

    >>> local_path("/data/a:b"), local_path("file:///data/a"), local_path("s3://bucket/a"), local_path("a:b/c")
    (PosixPath('/data/a:b'), PosixPath('/data/a'), None, None)
    """
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if ":" not in location.split("/")[0] else None


def source_positions(checkpoint: str | None, batch_id: int) -> str | None:
    """The end offsets that Spark planned for this batch before it ran it: one line for each source.

    None if the checkpoint is not a local directory.
    """
    directory = None if checkpoint is None else local_path(checkpoint)
    if directory is None:
        return None
    plan = directory / "offsets" / str(batch_id)
    try:
        lines = plan.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return "\n".join(lines[2:]) or None


def plan_of(checkpoint: str | None, batch_id: int) -> str:
    """A short hash that distinguishes one plan of a batch from another; "" if the plan is unknown."""
    positions = source_positions(checkpoint, batch_id)
    return "" if positions is None else hashlib.sha256(positions.encode()).hexdigest()[:16]
