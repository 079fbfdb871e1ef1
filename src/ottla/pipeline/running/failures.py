"""Summarizes Spark's errors in one sentence, and decides whether a restart can help. Pure."""

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from ottla.errors import ErrorCode, KafkaError, OttlaError

OTTLA_ERROR = re.compile(r"\b(ottla(?:\.\w+)+\.\w+): (.+?)(?=\n\S*\n|\nTraceback|\n\tat |\n *at |\n=== |\Z)", re.DOTALL)
CODE = re.compile(r"^([A-Z][A-Z0-9_]+)\b")
# A lookahead for the text: an error wraps another, and the inner one must match too.
SPARK_ERROR = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (?=(.+?)(?: SQLSTATE: \w+|\n|\Z))", re.DOTALL)
# The line of a Python traceback with the exception: the first that is not indented.
RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$", re.MULTILINE)
RETRIABLE_ERRORS = {"BrokersUnavailable", "DatabaseUnavailable", "TransactionAbortable", "LostPart"}
"""Ottla's own errors that a restart may fix, by class."""
RETRIABLE_CODES = {
    "BROKER_NOT_AVAILABLE",
    "UNKNOWN_PRODUCER_ID",
    "INVALID_PRODUCER_EPOCH",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "TRANSACTION_ABORTABLE",
}
"""Codes that a client does not retry, but that a restart of the query fixes: it writes the batch again."""
WRAPPERS = {"STREAM_FAILED", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", "PYTHON_DATA_SOURCE_ERROR"}
QUERY_MISTAKES = {"AnalysisException", "ParseException", "IllegalArgumentException", "UnsupportedOperationException"}
"""What Spark raises for a mistake in a query, and also for failures of its Python processes."""
PYTHON_PROCESS = re.compile(
    r"\[PYTHON_\w*DATA_SOURCE_\w*ERROR\]"
    r"|\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: ottla\b"
    r"|\[DATA_SOURCE_NOT_EXIST\] Data source 'ottla\b"
    r"|Python worker (?:failed to connect back|exited unexpectedly)"
)
"""A Python process of Spark was killed or did not start in time. Spark looks for Python formats in such a process too:
if that one dies, the formats are missing for as long as the driver runs."""
SLOW_START = "Python worker failed to connect back"
"""The error of a query whose source took longer to start than the ten seconds that Spark waits. Nothing was read."""


@dataclass(frozen=True)
class Failure:
    """A failure of the driver, as reported to its supervisor."""

    cause: str
    hint: str = ""
    retriable: bool = True
    """Whether a restart of the same pipeline may succeed."""
    query: str = ""
    """The query that failed; "" if it is unknown or if the driver died as a whole."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


class QueryFailed(Exception):
    """One of the queries ended with an error."""

    def __init__(self, query: str, error: Exception) -> None:
        super().__init__(f"{query}: {error}")
        self.query = query
        self.error = error


def failure_of(error: Exception) -> Failure:
    """The failure for an exception in the driver."""
    if isinstance(error, QueryFailed):
        return replace(failure_of(error.error), query=error.query)
    kind = type(error).__name__
    if isinstance(error, OttlaError) and not isinstance(error, KafkaError):
        return Failure(error.message, error.hint, retriable=kind in RETRIABLE_ERRORS)
    found = explain(str(error))
    if kind in QUERY_MISTAKES and not PYTHON_PROCESS.search(str(error)):
        return replace(found, retriable=False)
    return found


def is_slow_start(error: Exception | None) -> bool:
    """Whether a query failed only because a Python process took too long to start."""
    return error is not None and SLOW_START in str(error)


def explain(text: str) -> Failure:
    """The failure for the text of an error from Spark: our own message if it contains one, else Spark's.

    >>> explain("[STREAM_FAILED] … ottla.spark.sink.errors.NotOwner: Another driver has this sink. Stop it.").retriable
    False
    """
    ours = list(OTTLA_ERROR.finditer(text))
    if ours:
        kind, text = ours[-1].group(1).rsplit(".", 1)[-1], _condensed(ours[-1].group(2))
        return Failure(text, retriable=_is_retriable(kind, text))
    raised = re.search(r"\[USER_RAISED_EXCEPTION\] (.+?)(?= SQLSTATE|\n|\Z)", text, re.DOTALL)
    if raised:
        hint = "Fix the producer of the record, or set on_bad_record: skip or dead-letter."
        return Failure(_condensed(raised.group(1)), hint if "bad record" in raised.group(1) else "", retriable=False)
    requirement = re.search(r"requirement failed: ([^\n]+?)(?= SQLSTATE|\n|\Z)", text)
    if requirement:
        return Failure(_condensed(requirement.group(1)), retriable=False)
    trace = text.rpartition("Traceback (most recent call last):\n")[2]
    raised_by = RAISED.search(trace) if trace != text else None
    if raised_by:
        return Failure(_condensed(raised_by.group(0))[:500])
    for found in SPARK_ERROR.finditer(text):
        if found.group(1) not in WRAPPERS:
            return Failure(_condensed(found.group(2))[:500])
    inner = text.partition("terminated with exception: ")[2] or text
    inner = re.sub(r"^\[[A-Z][A-Z0-9_.]+\] ", "", inner)
    return Failure(_condensed(inner.split("\n")[0])[:500] or "the driver failed without an error message")


def _is_retriable(kind: str, text: str) -> bool:
    code = CODE.match(text)
    if code and code.group(1) in ErrorCode.__members__:
        return ErrorCode[code.group(1)].retriable or code.group(1) in RETRIABLE_CODES
    return kind in RETRIABLE_ERRORS


def _condensed(text: str) -> str:
    """In one line, without the trailing SQLSTATEs: each wrapping error adds one."""
    return re.sub(r"(?: SQLSTATE: \w+)+$", "", " ".join(text.split()))
