"""The options of `format("ottla-database")`: names, defaults, checks. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from ottla.client.core.guarantees import Guarantee
from ottla.client.stores.table_names import TABLE_NAME_HINT, table_name_problem
from ottla.errors import ConfigError, did_you_mean, nearest
from ottla.spark.option_values import batch_id, choice, integer_or
from ottla.types import INT32_MAX

BUSY_TIMEOUT_MS = 60_000
DOCS = {
    "url": "sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host:5432/database",
    "table": "the table to write to, as name or schema.name; created with the DataFrame's columns if it does not exist",
    "delivery": "exactly-once (default), at-least-once or at-most-once",
    "upsertKeys": "columns that identify a row, separated by commas: an existing row with the same values is replaced",
    "sinkId": "inside foreachBatch: a name for the stream, so that a repeated batch is not written again",
    "batchId": "inside foreachBatch, with a sinkId: the batch id that Spark passes to the function",
    "busyTimeoutMs": "how long to wait for a lock that another writer of the database holds (default 60000)",
}
# Spark passes these options to every sink.
SPARK_OPTIONS = ("checkpointLocation", "path", "queryName", "outputMode", "truncate")


@dataclass(frozen=True)
class DatabaseOptions:
    """The user's options, checked. A plain value: Spark pickles it between processes."""

    url: str
    table: str
    delivery: Guarantee = Guarantee.EXACTLY_ONCE
    upsert_keys: tuple[str, ...] = ()
    busy_timeout_ms: int = BUSY_TIMEOUT_MS
    checkpoint_location: str | None = None
    sink_id: str | None = None
    batch_id: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "DatabaseOptions":
        """
        >>> DatabaseOptions.parse({"url": "sqlite:///shop.db", "table": "orders"}).delivery.value
        'exactly-once'
        """
        known = {name.lower(): name for name in (*DOCS, *SPARK_OPTIONS)}
        given: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in known:
                similar = nearest(name.lower(), known)
                hint = f"Did you mean {known[similar]}?" if similar else f"The options are {', '.join(DOCS)}."
                raise ConfigError(f'format("ottla-database") has no option {name}', hint)
            given[known[name.lower()]] = value
        for needed in ("url", "table"):
            if not given.get(needed, "").strip():
                raise ConfigError(
                    f'format("ottla-database") needs the option {needed}',
                    f'Set .option("{needed}", …): {DOCS[needed]}.',
                )
        sink_id, batch = _check_batch(given)
        return cls(
            sink_id=sink_id,
            batch_id=batch,
            url=_check_url(given["url"].strip()),
            table=_check_table(given["table"].strip()),
            delivery=choice(given, "delivery", tuple(Guarantee)),
            upsert_keys=_split(given.get("upsertKeys", "")),
            busy_timeout_ms=integer_or(
                given,
                "busyTimeoutMs",
                BUSY_TIMEOUT_MS,
                at_least=0,
                at_most=INT32_MAX,
                hint=f"Use a whole number: {DOCS['busyTimeoutMs']}.",
            ),
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
    hint = did_you_mean(scheme, ["sqlite", "postgresql"], f"Use {DOCS['url']}.")
    raise ConfigError(f"url {without_password(url)} is not a supported database", hint)


def _check_table(table: str) -> str:
    problem = table_name_problem(table)
    if problem:
        raise ConfigError(problem, TABLE_NAME_HINT)
    return table


def _check_batch(given: Mapping[str, str]) -> tuple[str | None, int | None]:
    sink_id, batch = given.get("sinkId"), batch_id(given, "batchId")
    if (sink_id is None) != (batch is None):
        raise ConfigError("only one of sinkId and batchId is set", "Set both, inside foreachBatch, or neither.")
    if sink_id is None:
        return None, None
    if not sink_id.strip() or len(sink_id) > 100:
        raise ConfigError(f"sinkId {sink_id!r} is blank or has more than 100 characters", "Choose another name.")
    return sink_id.strip(), batch


def _split(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(set(names)) != len(names):
        raise ConfigError(f"upsertKeys {text!r} contains a column twice", "List each column once.")
    return names
