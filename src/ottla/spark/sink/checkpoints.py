"""What Spark wrote about a batch into the query's checkpoint, if that is a directory the driver can read."""

import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit


def source_positions(checkpoint: str | None, batch_id: int) -> str | None:
    """The end offsets that Spark planned for this batch before it ran it: one line for each source.

    None if the checkpoint is not a local directory.
    """
    if checkpoint is None:
        return None
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return None
    plan = Path(unquote(parts.path) if parts.scheme else checkpoint) / "offsets" / str(batch_id)
    try:
        lines = plan.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return "\n".join(lines[2:]) or None


def plan_of(checkpoint: str | None, batch_id: int) -> str:
    """A short hash that distinguishes one plan of a batch from another; "" if the plan is unknown."""
    positions = source_positions(checkpoint, batch_id)
    return "" if positions is None else hashlib.sha256(positions.encode()).hexdigest()[:16]
