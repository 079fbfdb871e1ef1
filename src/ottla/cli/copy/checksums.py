"""A checksum of the records of a partition, from Arrow columns; it does not depend on how they are batched. Pure.

Each column is hashed as two streams: the lengths (-1 for null) and the bytes. Offsets are not part of it: they differ
between clusters.
"""

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ["key", "value", "timestamp", "headers"]


class Checksum:
    """Key, value, timestamp and headers of records, in their order."""

    def __init__(self) -> None:
        self.count = 0
        self._streams: dict[str, Any] = {}

    def add(self, batch: "pa.RecordBatch") -> None:
        """Adds the rows of a batch with COLUMNS."""
        import pyarrow as pa

        self.count += batch.num_rows
        for name in ("key", "value"):
            self._add_bytes(name, batch.column(name))
        self._update("timestamp", batch.column("timestamp").cast(pa.int64()))
        headers = batch.column("headers")
        self._update("header counts", headers.value_lengths().cast(pa.int32()))
        flat = headers.flatten()
        self._add_bytes("header keys", flat.field("key").cast(pa.binary()))
        self._add_bytes("header values", flat.field("value"))

    def hexdigest(self) -> str:
        whole = hashlib.sha256()
        for name in sorted(self._streams):
            whole.update(self._streams[name].digest())
        return whole.hexdigest()[:32]

    def _add_bytes(self, name: str, column: "pa.Array") -> None:
        import pyarrow as pa
        import pyarrow.compute

        compute: Any = pyarrow.compute  # its functions are created at run time
        self._update(f"{name} lengths", compute.fill_null(compute.binary_length(column), -1).cast(pa.int32()))
        dense = compute.drop_null(column)  # nulls contribute no bytes
        _, offsets, data = dense.buffers()
        if len(dense) and data is not None:
            ends = memoryview(offsets).cast("i")
            self._stream(name).update(memoryview(data)[ends[dense.offset] : ends[dense.offset + len(dense)]])

    def _update(self, name: str, numbers: "pa.Array") -> None:
        if len(numbers):
            width = numbers.type.bit_width // 8
            data = memoryview(numbers.buffers()[1])
            self._stream(name).update(data[numbers.offset * width : (numbers.offset + len(numbers)) * width])

    def _stream(self, name: str) -> Any:
        if name not in self._streams:
            self._streams[name] = hashlib.sha256()
        return self._streams[name]


class LatestByKey:
    """The latest record of each key: what a compacted topic keeps. A tombstone removes its key."""

    def __init__(self) -> None:
        self.latest: dict[bytes | None, bytes] = {}

    def add(self, batch: "pa.RecordBatch") -> None:
        for row in batch.select(COLUMNS).to_pylist():
            if row["value"] is None:
                self.latest.pop(row["key"], None)
            else:
                content = repr((row["value"], row["timestamp"], row["headers"])).encode()
                self.latest[row["key"]] = hashlib.sha256(content).digest()

    @property
    def count(self) -> int:
        return len(self.latest)

    def hexdigest(self) -> str:
        whole = hashlib.sha256()
        for key in sorted(self.latest, key=lambda each: (each is not None, each or b"")):
            whole.update(hashlib.sha256(b"-" if key is None else b"+" + key).digest())
            whole.update(self.latest[key])
        return whole.hexdigest()[:32]
