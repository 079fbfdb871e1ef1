"""What a task and a driver do next, decided from the decision record, the ledger and the current run. Pure.

A sink's decision is one record of a compacted topic. It names a batch, its parts and the run that decided, and is
written before the first part is committed. A decided batch is never rolled back: the next run rolls forward. The
functions here return what a task and a driver have to do; tasks.py and driver.py do it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.clock import utc_text
from ottla.spark.sink.errors import LostForGood, NotOwner, SinkError
from ottla.spark.sink.ledger import Ledger, Names, is_in
from ottla.types import compact_json

DECISION_KEY, DONE_KEY, CLAIM_KEY = b"decision", b"done", b"claim"
BYTE_SUM_LIMIT = 1 << 63
RUNS_KEPT = 32
"""How many former owners are remembered, so that a fenced run is not mistaken for a new one."""


@dataclass(frozen=True)
class Digest:
    """A summary of rows in any order: two runs of a task with different digests wrote different rows."""

    rows: int = 0
    size_bytes: int = 0
    byte_sum: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        byte_sum = (self.byte_sum + other.byte_sum) % BYTE_SUM_LIMIT
        return Digest(self.rows + other.rows, self.size_bytes + other.size_bytes, byte_sum)

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.size_bytes} bytes (sum {self.byte_sum})"


@dataclass(frozen=True)
class Part:
    """What one task wrote for one batch: an open transaction."""

    task: int
    producer_id: int
    producer_epoch: int
    digest: Digest = Digest()

    def prepared(self, names: Names) -> PreparedTransaction:
        return PreparedTransaction(names.task(self.task), self.producer_id, self.producer_epoch)

    def is_same(self, other: "Part | None") -> bool:
        """Whether it is the same transaction, and not another copy of its rows."""
        return other is not None and (self.producer_id, self.producer_epoch) == (
            other.producer_id,
            other.producer_epoch,
        )


@dataclass(frozen=True)
class Run:
    """One start of the query. It owns the sink until another run takes over."""

    run: str
    since_ms: int
    host: str


@dataclass(frozen=True)
class Decision:
    """The record that commits a batch to these parts."""

    query: str
    batch: int
    parts: Mapping[int, Part]
    runs: tuple[Run, ...]
    """The runs that owned the sink; the current owner is the last."""
    decided_ms: int = 0
    open_ms: int = 0
    """From the first row of the batch to the decision."""
    held_ms: int = 0
    """The longest time a prepared part waited for the decision. It blocked read_committed readers that long."""
    is_job: bool = False
    """A batch write, whose `query` is the job's id and whose batch is 0."""
    plan: str = ""
    """Distinguishes this batch from one with the same number and other end offsets; "" if unknown."""

    @property
    def owner(self) -> Run:
        return self.runs[-1]

    def to_bytes(self) -> bytes:
        return compact_json(
            {
                "version": 1,
                "query": self.query,
                "batch": self.batch,
                "decided_ms": self.decided_ms,
                "open_ms": self.open_ms,
                "held_ms": self.held_ms,
                "is_job": self.is_job,
                "plan": self.plan,
                "parts": [
                    [p.task, p.producer_id, p.producer_epoch, p.digest.rows, p.digest.size_bytes, p.digest.byte_sum]
                    for p in self.parts.values()
                ],
                "runs": [[r.run, r.since_ms, r.host] for r in self.runs],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Decision":
        stored = json.loads(data)
        parts = [
            Part(task, producer_id, epoch, Digest(*digest)) for task, producer_id, epoch, *digest in stored["parts"]
        ]
        return cls(
            stored["query"],
            stored["batch"],
            {part.task: part for part in parts},
            tuple(Run(*run) for run in stored["runs"]),
            stored["decided_ms"],
            stored["open_ms"],
            stored["held_ms"],
            stored["is_job"],
            stored.get("plan", ""),
        )


@dataclass(frozen=True)
class Done:
    """Every part of this batch is committed. Kept in addition to the ledger, which expires with its consumer group."""

    query: str
    batch: int
    at_ms: int = 0
    commit_ms: int = 0
    """How long the commit of all parts took."""

    def to_bytes(self) -> bytes:
        return compact_json(
            {"version": 1, "query": self.query, "batch": self.batch, "at_ms": self.at_ms, "commit_ms": self.commit_ms}
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Done":
        stored = json.loads(data)
        return cls(stored["query"], stored["batch"], stored["at_ms"], stored["commit_ms"])


@dataclass(frozen=True)
class Claim:
    """The runs that have begun to write; the last one owns the tasks' transactional ids.

    A run claims them before its first task takes one over, which ends the transactions of the run before. If that one
    is still running, this record is how it learns why its parts are gone.
    """

    runs: tuple[Run, ...]

    def to_bytes(self) -> bytes:
        return compact_json({"version": 1, "runs": [[r.run, r.since_ms, r.host] for r in self.runs]})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Claim":
        return cls(tuple(Run(*run) for run in json.loads(data)["runs"]))


@dataclass(frozen=True)
class SinkState:
    """The content of the decisions topic."""

    decision: Decision | None = None
    done: Done | None = None
    claim: Claim | None = None

    def is_done(self) -> bool:
        """Whether every part of the newest decision is known to be committed."""
        decision, done = self.decision, self.done
        if decision is None or not decision.parts:
            return True
        return done is not None and (done.query, done.batch) == (decision.query, decision.batch)

    def replay(self, key: bytes | None, value: bytes | None) -> "SinkState":
        """The state after one more record."""
        if key == DECISION_KEY:
            return replace(self, decision=None if value is None else Decision.from_bytes(value))
        if key == DONE_KEY:
            return replace(self, done=None if value is None else Done.from_bytes(value))
        if key == CLAIM_KEY:
            return replace(self, claim=None if value is None else Claim.from_bytes(value))
        return self


# --- a task ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Write:
    """Write the rows."""


@dataclass(frozen=True)
class Skip:
    """The rows are visible already, or the batch was decided without rows of this task."""


@dataclass(frozen=True)
class RollForward:
    """The batch is decided and this part is not committed yet. Commit it; if it is lost, write the same rows again."""

    part: Part


@dataclass(frozen=True)
class FinishEarlier:
    """An earlier write was decided and interrupted, and will not be repeated. Commit its part, then write.

    It is an earlier job, or an earlier batch if the function inside foreachBatch continued after a failure.
    """

    part: Part


def decide_write(
    state: SinkState, ledger: Ledger, query: str, batch: int, task: int, *, is_job: bool = False
) -> Write | Skip | RollForward | FinishEarlier:
    """What a task of this batch does before it writes anything. Raises NotOwner if another query or run owns it."""
    decision = state.decision
    check_query(decision, query, is_job)
    check_ledger(ledger, query, batch)
    check_job(decision, ledger, query)
    if is_in(ledger, task, query, batch):
        return Skip()
    if decision is None or decision.query != query or decision.batch < batch:
        return next((FinishEarlier(part) for part in unfinished(state, ledger) if part.task == task), Write())
    check_batch(decision, batch)
    part = decision.parts.get(task)
    if part is None or state.is_done():
        return Skip()
    return RollForward(part)


def claimed(claim: Claim | None, run: Run) -> Claim | None:
    """The claim to write before this run takes over any transactional id; None if it has one already."""
    runs = claim.runs if claim is not None else ()
    if runs and runs[-1].run == run.run:
        return None
    return Claim((*runs, run)[-RUNS_KEPT:])


def may_be_decided(first_batch: int, batch: int) -> bool:
    """Whether an earlier run can have decided this batch. `first_batch` is the first of this run that a worker saw.

    Spark repeats only the first batch after a start. For later ones the driver knows all decisions.
    """
    return batch <= first_batch


def is_repeat(state: SinkState, query: str, batch: int, run: str) -> bool:
    """Whether this same run decided this batch before: inside foreachBatch the same write may be called twice."""
    decision = state.decision
    return decision is not None and (decision.query, decision.batch, decision.owner.run) == (query, batch, run)


def check_repeat(decision: Decision, repeated: Digest) -> None:
    """The second write of a batch in one run adds nothing, so it must have the same rows as the first."""
    written = sum((part.digest for part in decision.parts.values()), Digest())
    if repeated != written:
        raise SinkError(
            f"batch {decision.batch} of this sink was written before in this run with other rows: "
            f"{written} then, {repeated} now",
            "Two writes inside foreachBatch need two names: give each its own sinkName. To retry one write, persist "
            "the DataFrame, so that it has the same rows.",
        )


def check_query(decision: Decision | None, query: str, is_job: bool) -> None:
    if decision is None:
        return
    if decision.is_job != is_job:
        theirs, ours = ("batch writes", "a stream") if decision.is_job else ("a stream", "a batch write")
        raise NotOwner(f"this sinkName is in use by {theirs}; this is {ours}", "Choose another sinkName.")
    if not is_job and decision.query != query:
        raise NotOwner(
            f"this sink belongs to another query: {decision.query} wrote batch {decision.batch} to it; "
            f"this is {query}, with another checkpoint",
            "Give this query its own sinkName. To reuse the name, delete the sink's decisions topic.",
        )


def check_batch(decision: Decision, batch: int) -> None:
    if decision.batch > batch:
        raise NotOwner(
            f"the checkpoint is older than the sink: this is batch {batch}, and the sink already has batch "
            f"{decision.batch} of this query (driver on {decision.owner.host})",
            "Is another driver running on a copy of the checkpoint, or was the checkpoint restored from a backup? "
            "Continue with the newest checkpoint.",
        )


def check_plan(decision: Decision, plan: str) -> None:
    """Spark repeats a batch exactly as planned. A batch with other end offsets is another batch, with other rows."""
    if decision.plan and plan and decision.plan != plan:
        raise NotOwner(
            f"the checkpoint is older than the sink: the sink has a batch {decision.batch} of this query with other "
            f"end offsets (driver on {decision.owner.host})",
            "Was the checkpoint restored from a backup, was its newest plan lost in a crash of the machine, or is "
            "another driver running on a copy of it? Continue with the newest checkpoint.",
        )


def check_ledger(ledger: Ledger, query: str, batch: int) -> None:
    """The ledger remains if only the decisions topic is deleted."""
    for task, entry in ledger.items():
        if entry.query != query:
            continue
        if entry.next_batch > batch + 1:
            raise NotOwner(
                f"the checkpoint is older than the sink: this is batch {batch}, and task {task} already wrote batch "
                f"{entry.next_batch - 1} of this query",
                "Continue with the newest checkpoint.",
            )


def check_job(decision: Decision | None, ledger: Ledger, query: str) -> None:
    """Rejects a job that was written before another one: its ledger entries are from that earlier write.

    That write was finished before the next job began. It must neither count as this one nor be repeated.
    """
    if decision is None or decision.query == query:
        return
    if any(entry.query == query for entry in ledger.values()):
        raise SinkError(
            f"job {query} was written to this sink before job {decision.query}",
            "Nothing was written. To write it once more, give it another jobId.",
        )


# --- the driver -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a driver has to do for a batch, in this order."""

    decision: Decision
    is_new: bool
    """The decision has to be written, and waited for, before anything else."""
    commit: tuple[Part, ...] = ()
    abort: tuple[Part, ...] = ()
    takes_over: bool = False
    """This run was not the owner before: transactions that earlier runs left open have to be aborted."""


def check_owner(decision: Decision | None, run: str) -> None:
    """Raises NotOwner if another run took this sink over from this one."""
    if decision is not None:
        _check_last(decision.runs, run)


def check_claim(claim: Claim | None, run: str) -> None:
    """Raises NotOwner if another run has begun to write after this one."""
    if claim is not None:
        _check_last(claim.runs, run)


def _check_last(runs: tuple[Run, ...], run: str) -> None:
    owner = runs[-1]
    if owner.run != run and any(each.run == run for each in runs):
        raise NotOwner(
            f"another driver owns this sink: run {owner.run} on {owner.host}, since {utc_text(owner.since_ms)}; "
            f"this is run {run}",
            "Two drivers run on one checkpoint. Stop one of them; the other continues.",
        )


def decide_commit(
    state: SinkState,
    ledger: Ledger,
    query: str,
    batch: int,
    run: Run,
    parts: Iterable[Part],
    now: int,
    *,
    is_job: bool = False,
    plan: str = "",
) -> Plan:
    """What the driver does when every task of a batch has returned. `ledger` was read after `parts` were opened."""
    before = state.decision
    check_owner(before, run.run)
    check_query(before, query, is_job)
    check_ledger(ledger, query, batch)
    check_job(before, ledger, query)
    copies = {part.task: part for part in parts}
    takes_over = before is None or before.owner.run != run.run
    runs = before.runs if before is not None else ()
    if takes_over:
        runs = (*runs, run)[-RUNS_KEPT:]
    if before is None or before.query != query or before.batch < batch:
        # Without a decision for this batch no part of it can be in the ledger, unless the decision itself was deleted.
        commit = {t: p for t, p in copies.items() if not is_in(ledger, t, query, batch)}
        abort = tuple(p for t, p in copies.items() if t not in commit)
        decision = Decision(query, batch, commit, runs, now, is_job=is_job, plan=plan)
        return Plan(decision, True, tuple(commit.values()), abort, takes_over)
    check_batch(before, batch)
    check_plan(before, plan)
    return _settle(state, before, ledger, copies, runs, takes_over)


def _settle(
    state: SinkState,
    before: Decision,
    ledger: Ledger,
    copies: Mapping[int, Part],
    runs: tuple[Run, ...],
    takes_over: bool,
) -> Plan:
    """The batch was decided before: commit the parts that are missing, and drop copies of those that are visible."""
    missing = {
        task: part
        for task, part in before.parts.items()
        if not state.is_done() and not is_in(ledger, task, before.query, before.batch)
    }
    # A copy that replaces a missing part: opening its transaction ended the one it replaces.
    commit = {task: copies.get(task, part) for task, part in missing.items()}
    abort = tuple(
        part for task, part in copies.items() if task not in commit and not part.is_same(before.parts.get(task))
    )
    substituted = any(not part.is_same(before.parts[task]) for task, part in commit.items())
    decision = replace(before, parts={**before.parts, **commit}, runs=runs)
    return Plan(decision, substituted or takes_over, tuple(commit.values()), abort, takes_over)


def unfinished(state: SinkState, ledger: Ledger) -> list[Part]:
    """The parts of the newest decision that are not committed yet."""
    decision = state.decision
    if decision is None or state.is_done():
        return []
    return [p for t, p in decision.parts.items() if not is_in(ledger, t, decision.query, decision.batch)]


def is_decided(state: SinkState, query: str, batch: int) -> bool:
    """Whether it is too late for abort()."""
    decision = state.decision
    return decision is not None and decision.query == query and decision.batch >= batch


def is_lost(ledger: Ledger, task: int, query: str, batch: int, *, is_known: bool) -> bool:
    """Whether a decided part that the brokers do not commit has to be written again; if not, it was committed before.

    The ledger entry of an earlier batch proves that it was not committed. Without an entry, and if the brokers do not
    know the transaction either (`is_known`), both have expired. Guessing could lose or duplicate rows.
    """
    if is_in(ledger, task, query, batch):
        return False
    entry = ledger.get(task)
    if not is_known and (entry is None or entry.query != query):
        raise LostForGood(
            f"batch {batch} was decided and not recorded as done, and the brokers have forgotten the outcome for the "
            f"part of task {task}: the query was stopped for longer than they keep offsets and transactional ids",
            "Check whether its rows are in the topic. If they are not, set lostParts=replace for one start; if they "
            "are, start a new checkpoint after them.",
        )
    return True


def check_same(expected: Digest, found: Digest, task: int) -> None:
    """A lost part may only be replaced by the same rows: other parts of its batch may be committed already."""
    if expected != found:
        raise LostForGood(
            f"the batch was decided, then the broker dropped the part of task {task} (its transaction timed out or "
            f"was aborted), and the retry has other rows: {found} instead of {expected}",
            "The query is not deterministic. Set lostParts=replace to accept the new rows. To avoid this, allow "
            "two-phase commit on the brokers, or raise transaction.timeout.ms.",
        )
