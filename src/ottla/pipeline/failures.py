"""What went wrong in Spark, in a sentence, and whether trying again can help. Pure."""

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from ottla.errors import ErrorCode, OttlaError

OURS = re.compile(r"\b(ottla(?:\.\w+)+\.\w+): (.+?)(?=\n\S*\n|\nTraceback|\n\tat |\n *at |\n=== |\Z)", re.DOTALL)
CODE = re.compile(r"^([A-Z][A-Z0-9_]+)\b")
# Only looks ahead at the text: an error wraps another, and the inner one is found too.
SPARKS_OWN = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (?=(.+?)(?: SQLSTATE: \w+|\n|\Z))", re.DOTALL)
# The line of a Python traceback that says what was raised: the first that is not indented.
RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$", re.MULTILINE)
TRY_AGAIN = {"BrokersAway", "DatabaseUnavailable", "TransactionAbortable", "LostPart"}
"""Errors of ours that another attempt may not meet again."""
CODES = {
    "BROKER_NOT_AVAILABLE",
    "UNKNOWN_PRODUCER_ID",
    "INVALID_PRODUCER_EPOCH",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "TRANSACTION_ABORTABLE",
}
"""Codes that no client tries again, and another start of the query gets over: it writes the batch anew."""
WRAPPERS = {"STREAM_FAILED", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", "PYTHON_DATA_SOURCE_ERROR"}
QUERY_MISTAKES = {"AnalysisException", "ParseException", "IllegalArgumentException", "UnsupportedOperationException"}


@dataclass(frozen=True)
class Failure:
    """A failure of the driver, as its supervisor hears of it."""

    cause: str
    cure: str = ""
    curable: bool = True
    """Whether the same pipeline may succeed when it is started again."""
    query: str = ""
    """Whose it is, where that is known: a driver may also die as a whole."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


class QueryFailed(Exception):
    """One of the queries ended with an error of Spark's."""

    def __init__(self, query: str, error: Exception) -> None:
        super().__init__(f"{query}: {error}")
        self.query = query
        self.error = error


def failure_of(error: Exception) -> Failure:
    """What an exception in the driver means."""
    if isinstance(error, QueryFailed):
        return replace(failure_of(error.error), query=error.query)
    kind = type(error).__name__
    if isinstance(error, OttlaError):
        return Failure(error.message, error.hint, curable=kind in TRY_AGAIN)
    found = explain(str(error))
    if kind in QUERY_MISTAKES:
        return Failure(found.cause, found.cure, curable=False)
    return found


def explain(text: str) -> Failure:
    """What the text of an error from Spark means: our own words if they are in it, else Spark's.

    >>> explain("[STREAM_FAILED] … ottla.spark.sink.errors.NotOwner: Another driver has this sink. Stop it.").curable
    False
    """
    ours = list(OURS.finditer(text))
    if ours:
        kind, told = ours[-1].group(1).rsplit(".", 1)[-1], _one_line(ours[-1].group(2))
        return Failure(told, curable=_is_curable(kind, told))
    raised = re.search(r"\[USER_RAISED_EXCEPTION\] (.+?)(?= SQLSTATE|\n|\Z)", text, re.DOTALL)
    if raised:
        cure = "Mend the record's producer, or set on_bad_record: skip or dead-letter."
        return Failure(_one_line(raised.group(1)), cure if "bad record" in raised.group(1) else "", curable=False)
    requirement = re.search(r"requirement failed: ([^\n]+?)(?= SQLSTATE|\n|\Z)", text)
    if requirement:
        return Failure(_one_line(requirement.group(1)), curable=False)
    trace = text.rpartition("Traceback (most recent call last):\n")[2]
    raised_by = RAISED.search(trace) if trace != text else None
    if raised_by:
        return Failure(_one_line(raised_by.group(0))[:500])
    for found in SPARKS_OWN.finditer(text):
        if found.group(1) not in WRAPPERS:
            return Failure(_one_line(found.group(2))[:500])
    inner = text.partition("terminated with exception: ")[2] or text
    return Failure(_one_line(inner.split("\n")[0])[:500] or "the driver failed without a word")


def _is_curable(kind: str, told: str) -> bool:
    code = CODE.match(told)
    if code and code.group(1) in ErrorCode.__members__:
        return ErrorCode[code.group(1)].retriable or code.group(1) in CODES
    return kind in TRY_AGAIN


def _one_line(text: str) -> str:
    """Without the codes at its end, of which each error around it has added one."""
    return re.sub(r"(?: SQLSTATE: \w+)+$", "", " ".join(text.split()))
