"""The options of `format("ottla-database")`: what can be said, and what is refused with its hint. Pure."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from ottla.errors import ConfigError

EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE = "exactly-once", "at-least-once", "at-most-once"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE)
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
DOCS = {
    "url": "sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host:5432/database",
    "table": "the table to write to, as name or schema.name; made from the DataFrame's columns if it is missing",
    "delivery": "exactly-once (default), at-least-once or at-most-once",
    "upsertKeys": "columns, comma-separated, that name a row: a row with the same values is replaced",
    "sinkId": "inside foreachBatch: a name for the stream, so that a batch that comes twice is written once",
    "batchId": "inside foreachBatch: the number that Spark gives the batch; belongs to sinkId",
    "busyTimeoutMs": "how long to wait for a lock that another writer of the database holds (default 60000)",
}
# Spark's own options, which reach every sink.
SPARKS_OWN = ("checkpointLocation", "path", "queryName", "outputMode", "truncate")


@dataclass(frozen=True)
class DatabaseOptions:
    """What the user asked for, checked. Holds nothing alive: Spark carries it between processes."""

    url: str
    table: str
    delivery: str = EXACTLY_ONCE
    upsert_keys: tuple[str, ...] = ()
    busy_timeout_ms: int = 60_000
    checkpoint_location: str | None = None
    sink_id: str | None = None
    batch_id: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "DatabaseOptions":
        """
        >>> DatabaseOptions.parse({"url": "sqlite:///shop.db", "table": "orders"}).delivery
        'exactly-once'
        """
        known = {name.lower(): name for name in (*DOCS, *SPARKS_OWN)}
        given: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in known:
                close = difflib.get_close_matches(name.lower(), list(known), n=1)
                hint = f"Did you mean {known[close[0]]}?" if close else f"It takes {', '.join(DOCS)}."
                raise ConfigError(f'format("ottla-database") has no option {name}', hint)
            given[known[name.lower()]] = value
        for needed in ("url", "table"):
            if not given.get(needed, "").strip():
                raise ConfigError(
                    f'format("ottla-database") needs the option {needed}',
                    f'Write .option("{needed}", …): {DOCS[needed]}.',
                )
        sink_id, batch_id = _check_batch(given.get("sinkId"), given.get("batchId"))
        return cls(
            sink_id=sink_id,
            batch_id=batch_id,
            url=_check_url(given["url"].strip()),
            table=_check_table(given["table"].strip()),
            delivery=_check_delivery(given.get("delivery", EXACTLY_ONCE)),
            upsert_keys=_split(given.get("upsertKeys", "")),
            busy_timeout_ms=_milliseconds("busyTimeoutMs", given.get("busyTimeoutMs", "60000")),
            checkpoint_location=given.get("checkpointLocation"),
        )

    @property
    def shown_url(self) -> str:
        """The address without a password, for messages and logs."""
        return without_password(self.url)


def without_password(url: str) -> str:
    """
    >>> without_password("postgresql://ann:secret@db:5432/shop")
    'postgresql://ann:***@db:5432/shop'
    """
    parts = urlsplit(url)
    query = re.sub(r"(^|&)(password=)[^&]*", r"\1\2***", parts.query)
    userinfo, at, host = parts.netloc.rpartition("@")
    name, colon, _ = userinfo.partition(":")
    place = f"{name}{colon}{'***' if colon else ''}{at}{host}"
    shown = urlunsplit((parts.scheme, place, parts.path, query, ""))
    # urlunsplit drops the empty place of sqlite:///path.
    return url if parts.scheme == "sqlite" else shown


def _check_url(url: str) -> str:
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        return url
    if scheme == "sqlite":
        if not url.startswith("sqlite:///") or len(url) <= len("sqlite:///"):
            raise ConfigError(
                f"url {url} names no file",
                "Write sqlite:///relative/path or, with four strokes, sqlite:////absolute/path.",
            )
        if ":memory:" in url:
            raise ConfigError(
                "a SQLite database in memory is seen by one process only", "Name a file: Spark's tasks are processes."
            )
        return url
    close = difflib.get_close_matches(scheme, ["sqlite", "postgresql"], n=1)
    hint = f"Did you mean {close[0]}?" if close else f"Write {DOCS['url']}."
    raise ConfigError(f"url {without_password(url)} names no database that is known", hint)


def _check_table(table: str) -> str:
    if not TABLE_NAME.fullmatch(table):
        raise ConfigError(f"{table!r} is not a table's name", "Use letters, digits and _, or schema.table.")
    return table


def _check_delivery(text: str) -> str:
    chosen = text.strip().lower()
    if chosen not in DELIVERIES:
        close = difflib.get_close_matches(chosen, DELIVERIES, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(DELIVERIES)}."
        raise ConfigError(f"delivery {text} is not known", hint)
    return chosen


def _check_batch(sink_id: str | None, batch_id: str | None) -> tuple[str | None, int | None]:
    if (sink_id is None) != (batch_id is None):
        raise ConfigError("sinkId and batchId belong together", "Give both, inside foreachBatch, or neither.")
    if sink_id is None or batch_id is None:
        return None, None
    if not sink_id.strip() or len(sink_id) > 100:
        raise ConfigError(f"sinkId {sink_id!r} is not a name", "Give the stream a name of up to 100 characters.")
    if not re.fullmatch(r"[0-9]{1,18}", batch_id.strip()):
        raise ConfigError(f"batchId {batch_id} is not a batch's number", "Give the number that foreachBatch was given.")
    return sink_id.strip(), int(batch_id)


def _split(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(set(names)) != len(names):
        raise ConfigError(f"upsertKeys {text} names a column twice", "Name each column once.")
    return names


def _milliseconds(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise ConfigError(f"{name} {text} is not a number of milliseconds", f"Write a whole number: {DOCS[name]}.")
    return int(text)
