"""How errors that users can fix reach them through Spark: message and hint first, without a traceback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.errors import AuthenticationError, ErrorCode, KafkaError, OttlaError

UNAVAILABLE = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE})


@contextmanager
def explained(bootstrap: str = "") -> Iterator[None]:
    """Wraps code that Spark calls in its workers: a user's mistake is shown as one line, other errors unchanged."""
    try:
        yield
    except OttlaError as error:
        hide_traceback()
        if isinstance(error, ExplainedError):  # including errors of the sink, whose class the supervisor has to see
            raise
        raise (BrokersUnavailable if is_unavailable(error) else ExplainedError)(
            *message_and_hint(error, bootstrap)
        ) from None


def hide_traceback() -> None:
    """In a worker, Spark prints the traceback and then the text of an exception. It ends the worker afterwards, so this
    affects only one exception."""
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def is_unavailable(error: OttlaError) -> bool:
    """Whether no broker answers. A broker that rejects TLS or a login does answer, so it does not count."""
    return isinstance(error, KafkaError) and error.code in UNAVAILABLE and not isinstance(error, AuthenticationError)


class ExplainedError(OttlaError):
    """An error that Spark shows by its text, which includes the hint."""


class BrokersUnavailable(ExplainedError):
    """No broker answered in time. A restart of the query may succeed.

    Spark passes its name on with the text, which is how a pipeline's supervisor recognises it.
    """


def message_and_hint(error: OttlaError, bootstrap: str) -> tuple[str, str]:
    """The message and the hint of an error."""
    if not isinstance(error, KafkaError):
        return error.message, error.hint
    if is_unavailable(error):
        hint = f"Is a broker running at {bootstrap}, and can this machine reach it?"
        text = error.detail or error.code.name
        return text if text.startswith("no broker answered") else f"no broker answered: {text}", hint
    return f"{error.message} (brokers: {bootstrap})", error.hint
