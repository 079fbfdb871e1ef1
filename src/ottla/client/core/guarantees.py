"""The delivery guarantees of transform(), the Spark sinks and pipelines. Pure."""

from enum import StrEnum


class Guarantee(StrEnum):
    """How often the results of a record are written if something fails. The strongest, which is the default, is first.

    >>> Guarantee("at-least-once").value
    'at-least-once'
    """

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
