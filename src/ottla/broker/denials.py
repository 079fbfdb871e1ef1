"""Logs denied operations, as Kafka's `kafka.authorizer.logger` does, without flooding the log."""

import logging

from ottla.clock import monotonic
from ottla.net.log_limit import LogLimit, safe_to_log
from ottla.protocol.api import API
from ottla.security.authorizer import Authorizer, Denial

log = logging.getLogger("ottla.authorizer")

INTERVAL_S = 10.0
LINES = 20


class Denials:
    """Logs at most `LINES` denials in `INTERVAL_S`, and the same one only once: clients keep retrying."""

    def __init__(self) -> None:
        self._limit = LogLimit(LINES, INTERVAL_S)
        self._logged: dict[Denial, float] = {}
        """Until when each of the last denials is not repeated."""

    def report(self, denial: Denial, authorizer: Authorizer) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        now = monotonic()
        if self._logged.get(denial, now) > now or not self._limit.allows(now):
            return
        self._logged = {each: until for each, until in self._logged.items() if until > now}
        self._logged[denial] = now + INTERVAL_S
        principal, host, operation, resource, api_key = denial
        api = API[api_key].name if api_key in API else f"API {api_key}"
        what = f"{resource.type.name} {resource.name}"
        reason = authorizer.decide(principal, host, operation, resource).reason.value
        line = safe_to_log(f"{principal} at {host} may not {operation.name} {what} ({api}): {reason}")
        log.info("%s%s", line, self._limit.suffix)
