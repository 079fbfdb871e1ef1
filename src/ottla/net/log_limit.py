"""Protects the log from peers: they can neither flood it nor forge lines. Pure."""

LINE_MAX = 500
"""The most characters of a text from a peer."""


def safe_to_log(text: str) -> str:
    """Makes text from a peer safe to log: line breaks are escaped, and long text is truncated.

    >>> safe_to_log("unknown user\\n2030-01-01 INFO all is well")
    'unknown user\\\\n2030-01-01 INFO all is well'
    """
    shown = text if len(text) <= LINE_MAX else f"{text[:LINE_MAX]}…"
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


class LogLimit:
    """Allows `lines` in each `interval_s` seconds, and counts the rest.

    >>> limit = LogLimit(1, 10.0)
    >>> limit.allows(0.0), limit.allows(1.0), limit.allows(11.0)
    (True, False, True)
    >>> limit.suffix
    ' (1 more such line was not logged)'
    """

    __slots__ = ("_interval_s", "_left", "_lines", "_until", "suffix", "suppressed")

    def __init__(self, lines: int = 20, interval_s: float = 10.0) -> None:
        self._lines = lines
        self._interval_s = interval_s
        self._left = lines
        self._until = float("-inf")
        self.suppressed = 0
        """Lines not logged since the last one that was."""
        self.suffix = ""
        """To be added to the line that was just allowed."""

    def allows(self, now: float) -> bool:
        """Whether to log a line now. If so, `suffix` says what was left out before it."""
        if now >= self._until:
            self._until = now + self._interval_s
            self._left = self._lines
        if not self._left:
            self.suppressed += 1
            return False
        self._left -= 1
        count, self.suppressed = self.suppressed, 0
        plural = "lines were" if count > 1 else "line was"
        self.suffix = f" ({count} more such {plural} not logged)" if count else ""
        return True
