"""How the mistakes that people can mend reach them through Spark: cause and cure first, without a traceback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.errors import ErrorCode, KafkaError, OttlaError

AWAY = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE})
HINTS = {
    ErrorCode.LEADER_NOT_AVAILABLE: "Its broker is down or still coming up: try again.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for the right to use the topic.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for the right to use the group.",
}


@contextmanager
def explained(bootstrap: str = "") -> Iterator[None]:
    """Around what Spark calls in a worker of its own: a user's mistake is shown as one line, the rest as it is.

    Spark prints the text of an exception and, before it, the traceback. It ends the worker afterwards, so the switch
    that leaves the traceback out is for this one exception alone.
    """
    try:
        yield
    except ExplainedError:
        raise
    except (OttlaError, KafkaError) as error:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise ExplainedError(*in_words(error, bootstrap)) from None


class ExplainedError(OttlaError):
    """An error whose text has the hint in it: Spark shows the text and nothing else."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.hint = hint


def in_words(error: OttlaError | KafkaError, bootstrap: str) -> tuple[str, str]:
    """What is wrong, and how to put it right."""
    if isinstance(error, OttlaError):
        return error.message, error.hint
    if error.code in AWAY:
        hint = f"Is a broker running at {bootstrap}, and can this machine reach it?"
        return f"no broker answered: {error.detail or error.code.name}", hint
    return f"{error} (brokers: {bootstrap})", HINTS.get(error.code, "")
