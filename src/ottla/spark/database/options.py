"""The options of `format("ottla-database")`: names, defaults, checks. Pure."""

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
    "table": "the table to write to, as name or schema.name; created with the DataFrame's columns if it does not exist",
    "delivery": "exactly-once (default), at-least-once or at-most-once",
    "upsertKeys": "columns that identify a row, separated by commas: an existing row with the same values is replaced",
    "sinkId": "inside foreachBatch: a name for the stream, so that a repeated batch is not written again",
    "batchId": "inside foreachBatch, with a sinkId: the batch id that Spark passes to the function",
    "busyTimeoutMs": "how long to wait for a lock that another writer of the database holds (default 60000)",
}
# Spark's own options, which reach every sink.
SPARKS_OWN = ("checkpointLocation", "path", "queryName", "outputMode", "truncate")


@dataclass(frozen=True)
class DatabaseOptions:
    """The user's options, checked. A plain value: Spark pickles it between processes."""

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
                hint = f"Did you mean {known[close[0]]}?" if close else f"The options are {', '.join(DOCS)}."
                raise ConfigError(f'format("ottla-database") has no option {name}', hint)
            given[known[name.lower()]] = value
        for needed in ("url", "table"):
            if not given.get(needed, "").strip():
                raise ConfigError(
                    f'format("ottla-database") needs the option {needed}',
                    f'Set .option("{needed}", …): {DOCS[needed]}.',
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
        """The URL without its password, for messages and logs."""
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
    # urlunsplit drops the empty host of sqlite:///path.
    return url if parts.scheme == "sqlite" else shown


def _check_url(url: str) -> str:
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        return url
    if scheme == "sqlite":
        if not url.startswith("sqlite:///") or len(url) <= len("sqlite:///"):
            raise ConfigError(
                f"url {url} has no file path",
                "Use sqlite:///relative/path or, with four slashes, sqlite:////absolute/path.",
            )
        if ":memory:" in url:
            raise ConfigError(
                f"url {url} is a SQLite database in memory, which only one process can see",
                "Use a file: Spark runs its tasks in several processes.",
            )
        return url
    close = difflib.get_close_matches(scheme, ["sqlite", "postgresql"], n=1)
    hint = f"Did you mean {close[0]}?" if close else f"Use {DOCS['url']}."
    raise ConfigError(f"url {without_password(url)} is not a supported database", hint)


def _check_table(table: str) -> str:
    if not TABLE_NAME.fullmatch(table):
        raise ConfigError(f"{table!r} is not a valid table name", "Use letters, digits and _, or schema.table.")
    return table


def _check_delivery(text: str) -> str:
    chosen = text.strip().lower()
    if chosen not in DELIVERIES:
        close = difflib.get_close_matches(chosen, DELIVERIES, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(DELIVERIES)}."
        raise ConfigError(f"delivery is {text!r}", hint)
    return chosen


def _check_batch(sink_id: str | None, batch_id: str | None) -> tuple[str | None, int | None]:
    if (sink_id is None) != (batch_id is None):
        raise ConfigError("sinkId and batchId need each other", "Set both, inside foreachBatch, or neither.")
    if sink_id is None or batch_id is None:
        return None, None
    if not sink_id.strip() or len(sink_id) > 100:
        raise ConfigError(f"sinkId {sink_id!r} is blank or has more than 100 characters", "Choose another name.")
    if not re.fullmatch(r"[0-9]{1,18}", batch_id.strip()):
        raise ConfigError(
            f"batchId is {batch_id!r}, which is not a batch id",
            "Pass the batch id that foreachBatch passes to its function.",
        )
    return sink_id.strip(), int(batch_id)


def _split(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(set(names)) != len(names):
        raise ConfigError(f"upsertKeys {text!r} contains a column twice", "List each column once.")
    return names


def _milliseconds(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise ConfigError(
            f"{name} is {text!r}, which is not a number of milliseconds", f"Use a whole number: {DOCS[name]}."
        )
    return int(text)
