"""What the sink says when it must stop: a cause and a cure in one line, as Spark shows only the first. Pure."""

from ottla.errors import OttlaError


class SinkError(OttlaError):
    """Spark prints an error's text and nothing else, so the hint is part of it."""

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip() if self.message.endswith((".", "?")) else self._joined()

    def _joined(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class LostPart(SinkError):
    """A part of a decided batch is gone from the broker. The next start of the query may write it again."""


class LostForGood(LostPart):
    """No start brings it back: somebody has to look, and to choose."""


class NotOwner(SinkError):
    """Another driver, or another query, has this sink."""
