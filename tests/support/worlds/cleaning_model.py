"""What readers may see of a log that is compacted, truncated by retention and DeleteRecords, killed and restarted.

The model knows every record that was appended and what became of it. It does not know how the log stores them.
"""

import enum
from collections.abc import Iterable
from typing import NamedTuple


class Fate(enum.Enum):
    """What became of a record's transaction; COMMITTED also for records without one."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Row(NamedTuple):
    """One record."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class Sent(NamedTuple):
    """A batch as it was appended, or a marker."""

    data: bytes
    base_offset: int
    next_offset: int
    rows: tuple[Row, ...] = ()
    producer_id: int = -1
    epoch: int = -1
    next_sequence: int = -1
    transactional: bool = False
    commits: bool | None = None
    """For a marker: whether it commits."""


class CleaningModel:
    """The records of one log, and what may be missing from it."""

    def __init__(self, *, compacts: bool) -> None:
        self.compacts = compacts
        self.sent: list[Sent] = []
        self.start = self.end = 0
        self.deleted_to = 0
        """The highest log start so far: what is below may be missing even if a crash moved the log start back."""
        self.cleaned_to = 0
        """Records from here on were never compacted."""
        self.touched_to = 0
        """Aborted records from here on were never removed."""
        self.decisions: dict[tuple[int, int], bool] = {}
        """How a transaction ends, by producer and first offset: stays if the marker is lost with the tail."""
        self.tombstones_cleaned: dict[int, int] = {}
        """When a compaction first covered each tombstone."""
        self._replay()

    # --- what was appended --------------------------------------------------------------------------------

    def note(self, sent: Sent) -> None:
        assert sent.base_offset == self.end, f"appended at offset {sent.base_offset}, expected {self.end}"
        self.sent.append(sent)
        self._take(sent)

    def _replay(self) -> None:
        self.rows: dict[int, Row] = {}
        self.fates: dict[int, Fate] = {}
        self.open: dict[int, list[Sent]] = {}
        self.last_sent: dict[int, Sent] = {}
        """The last batch of each producer in its current epoch."""
        self.epochs: dict[int, int] = {}
        self.end = 0
        for sent in self.sent:
            self._take(sent)

    def _take(self, sent: Sent) -> None:
        producer_id = sent.producer_id
        self.end = sent.next_offset
        if sent.commits is not None:
            fate = Fate.COMMITTED if sent.commits else Fate.ABORTED
            ended = self.open.pop(producer_id, [])
            if ended:
                self.decisions[producer_id, ended[0].base_offset] = sent.commits
            for batch in ended:
                self.fates.update({row.offset: fate for row in batch.rows})
        else:
            fate = Fate.OPEN if sent.transactional else Fate.COMMITTED
            self.rows.update({row.offset: row for row in sent.rows})
            self.fates.update({row.offset: fate for row in sent.rows})
            if sent.transactional:
                self.open.setdefault(producer_id, []).append(sent)
        if producer_id >= 0:
            if sent.epoch != self.epochs.get(producer_id):
                self.last_sent.pop(producer_id, None)
            self.epochs[producer_id] = sent.epoch
            if sent.commits is None:
                self.last_sent[producer_id] = sent

    def lose_tail(self, end: int) -> None:
        """A power loss took everything from `end` on."""
        self.sent = [sent for sent in self.sent if sent.next_offset <= end]
        self._replay()
        self.end = end
        self.decisions = {key: commits for key, commits in self.decisions.items() if key[1] < end}
        self.cleaned_to, self.touched_to = min(self.cleaned_to, end), min(self.touched_to, end)
        self.tombstones_cleaned = {o: time for o, time in self.tombstones_cleaned.items() if o < end}

    def move_start(self, start: int) -> None:
        self.start = start
        self.deleted_to = max(self.deleted_to, start)

    # --- what readers must see ----------------------------------------------------------------------------

    def latest(self, bound: int, first: int = 0) -> dict[bytes, Row]:
        """The last committed record of each key in [first, bound), tombstones included."""
        return {
            row.key: row
            for offset, row in self.rows.items()
            if first <= offset < bound and row.key is not None and self.fates[offset] is Fate.COMMITTED
        }

    def check_read(self, found: list[Row], *, committed_only: bool, bound: int) -> None:
        """What a reader got that read everything from the log start to `bound`."""
        offsets = [row.offset for row in found]
        assert offsets == sorted(set(offsets)), f"offsets are out of order: {offsets}"
        for row in found:
            assert self.start <= row.offset < bound, f"{row} is outside of [{self.start}, {bound})"
            assert self.rows.get(row.offset) == row, f"{row} was {self.rows.get(row.offset)}"
            if committed_only:
                assert self.fates[row.offset] is Fate.COMMITTED, f"{row} is {self.fates[row.offset]}"
        seen = set(offsets)
        for offset, row in self.rows.items():
            if max(self.start, self.deleted_to) <= offset < bound and offset not in seen:
                fate = self.fates[offset]
                hidden = committed_only and fate is Fate.ABORTED
                assert hidden or self._may_be_missing(offset, fate), f"{row} ({fate}) is missing"
        self._check_final(found, bound)

    def _may_be_missing(self, offset: int, fate: Fate) -> bool:
        return self.compacts and offset < (self.touched_to if fate is Fate.ABORTED else self.cleaned_to)

    def _check_final(self, found: Iterable[Row], bound: int) -> None:
        """Every key has its last committed value. A deleted key has none, with or without its tombstone."""
        last = {row.key: row for row in found if self.fates[row.offset] is Fate.COMMITTED}
        for key, expected in self.latest(bound).items():
            row = last.get(key)
            if row is None:
                gone = expected.value is None or expected.offset < max(self.start, self.deleted_to)
                assert gone, f"the last record of its key is missing: {expected}"
            else:
                assert row == expected, f"{row} reappeared, its key's last record is {expected}"

    def check_reader(self, found: dict[bytes, list[Row]], first: int, bound: int) -> None:
        """The state of a reader that began at offset `first` and has reached `bound`, however slowly."""
        latest = self.latest(bound, first)
        gone = {key for key, row in latest.items() if row.offset < self.deleted_to}
        expected = {key: row.value for key, row in latest.items() if row.value is not None}
        state = {}
        for key, rows in found.items():
            committed = [row for row in rows if self.fates[row.offset] is Fate.COMMITTED and row.offset < bound]
            if committed and committed[-1].value is not None:
                state[key] = committed[-1].value
        for key in state.keys() | expected.keys():
            here, there = state.get(key), expected.get(key)
            is_right = here == there or (here is None and key in gone)
            assert is_right, f"a slow reader has {key!r}={here!r}, expected {there!r}"

    def check_cleaned(self, found: list[Row], cleaned_up_to: int, now: int, delete_retention_ms: int) -> None:
        """What a read_uncommitted reader may get below `cleaned_up_to` after a pass: one committed record per key."""
        latest = self.latest(cleaned_up_to)
        for row in found:
            if row.offset >= cleaned_up_to:
                break
            assert self.fates[row.offset] is not Fate.ABORTED, f"{row} is aborted, but still there"
            assert row.key is not None
            assert latest.get(row.key) == row, f"{row} is still there, replaced by {latest.get(row.key)}"
            if row.value is None:
                since = self.tombstones_cleaned.setdefault(row.offset, now)
                assert now < since + delete_retention_ms or since == now, f"the tombstone {row} is still there"
