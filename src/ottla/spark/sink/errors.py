"""The errors of the sink: message and hint in one line, because Spark shows only the first line. Pure."""

from ottla.spark.explaining import ExplainedError


class SinkError(ExplainedError):
    """A mistake in the use of the sink, or a state that it must not continue in."""


class LostPart(SinkError):
    """The broker dropped a part of a decided batch. The next start of the query may write it again."""


class LostForGood(LostPart):
    """A restart cannot recover the part: the user has to decide."""


class NotOwner(SinkError):
    """Another driver or another query owns this sink."""
