"""How errors that users can fix reach them through Spark: message and hint first, without a traceback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.errors import ErrorCode, KafkaError, OttlaError

AWAY = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE})


@contextmanager
def explained(bootstrap: str = "") -> Iterator[None]:
    """Wraps what Spark calls in one of its workers: a user's mistake is shown as one line, other errors unchanged.

    Spark prints the traceback and then the text of an exception. It ends the worker afterwards, so hiding the traceback
    affects only this exception.
    """
    try:
        yield
    except (OttlaError, KafkaError) as error:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, ExplainedError):  # also one of the sink, whose class the supervisor has to see
            raise
        is_away = isinstance(error, KafkaError) and error.code in AWAY
        raise (BrokersAway if is_away else ExplainedError)(*message_and_hint(error, bootstrap)) from None


def one_line(message: str, hint: str) -> str:
    """An error's text with its hint: Spark shows only the text.

    >>> one_line("there is no topic ordes", "Did you mean orders?")
    'there is no topic ordes. Did you mean orders?'
    """
    if not hint:
        return message
    return f"{message} {hint}" if message.endswith((".", "?")) else f"{message}. {hint}"


class ExplainedError(OttlaError):
    """An error whose text includes the hint: Spark shows only the text."""

    def __str__(self) -> str:
        return one_line(self.message, self.hint)


class BrokersAway(ExplainedError):
    """No broker answered in time. A restart of the query may succeed.

    Spark passes its name on with the text, which is how a pipeline's supervisor recognises it.
    """


def message_and_hint(error: OttlaError | KafkaError, bootstrap: str) -> tuple[str, str]:
    """The message and the hint of an error."""
    if isinstance(error, OttlaError):
        return error.message, error.hint
    if error.code in AWAY:
        hint = f"Is a broker running at {bootstrap}, and can this machine reach it?"
        text = error.detail or error.code.name
        return text if text.startswith("no broker answered") else f"no broker answered: {text}", hint
    return f"{error} (brokers: {bootstrap})", error.hint
