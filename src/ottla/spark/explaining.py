"""How the mistakes that people can mend reach them through Spark: cause and cure first, without a traceback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.errors import ErrorCode, KafkaError, OttlaError

AWAY = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE})


@contextmanager
def explained(bootstrap: str = "") -> Iterator[None]:
    """Around what Spark calls in a worker of its own: a user's mistake is shown as one line, the rest as it is.

    Spark prints the text of an exception and, before it, the traceback. It ends the worker afterwards, so the switch
    that leaves the traceback out is for this one exception alone.
    """
    try:
        yield
    except (OttlaError, KafkaError) as error:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, ExplainedError):
            raise
        is_away = isinstance(error, KafkaError) and error.code in AWAY
        raise (BrokersAway if is_away else ExplainedError)(*in_words(error, bootstrap)) from None


class ExplainedError(OttlaError):
    """An error whose text has the hint in it: Spark shows the text and nothing else."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.args = (f"{message}. {hint}" if hint else message,)


class BrokersAway(ExplainedError):
    """Nobody answered as long as we were ready to wait. Who starts the query again later may succeed.

    Its name travels with the text through Spark, and tells a pipeline's supervisor so.
    """


def in_words(error: OttlaError | KafkaError, bootstrap: str) -> tuple[str, str]:
    """What is wrong, and how to put it right."""
    if isinstance(error, OttlaError):
        return error.message, error.hint
    if error.code in AWAY:
        hint = f"Is a broker running at {bootstrap}, and can this machine reach it?"
        told = error.detail or error.code.name
        return told if told.startswith("no broker answered") else f"no broker answered: {told}", hint
    return f"{error} (brokers: {bootstrap})", error.hint
