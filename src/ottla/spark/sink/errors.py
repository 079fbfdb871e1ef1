"""The errors of the sink: message and hint in one line, because Spark shows only the first line. Pure."""

from ottla.errors import OttlaError
from ottla.spark.explaining import one_line


class SinkError(OttlaError):
    """Spark prints only an error's text, so the hint is part of it."""

    def __str__(self) -> str:
        return one_line(self.message, self.hint)


class LostPart(SinkError):
    """The broker dropped a part of a decided batch. The next start of the query may write it again."""


class LostForGood(LostPart):
    """A restart cannot recover the part: the user has to decide."""


class NotOwner(SinkError):
    """Another driver or another query owns this sink."""
