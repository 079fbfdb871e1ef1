"""What Spark has noted of a batch in the query's checkpoint, where that is a directory that the driver sees."""

import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit


def source_positions(checkpoint: str | None, batch_id: int) -> str | None:
    """What Spark has planned this batch to end at, as it wrote it down before the batch ran: one line a source.

    Known where the checkpoint is a directory that the driver sees as a file.
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
    """A few letters that tell one plan of a batch from another; "" where it is not known."""
    positions = source_positions(checkpoint, batch_id)
    return "" if positions is None else hashlib.sha256(positions.encode()).hexdigest()[:16]
