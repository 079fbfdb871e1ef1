"""One interface to SQLite and PostgreSQL: the operations that the sink needs."""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from ottla.errors import OttlaError
from ottla.spark.database.options import DatabaseOptions
from ottla.spark.database.types import POSTGRES, SQLITE, Column

Rows = Iterable[tuple[Any, ...]]


class DatabaseUnavailable(OttlaError):
    """The database cannot be reached, or it lost the staged rows. A retry may succeed."""


class Database(Protocol):
    """A connection. Only `transaction()` commits."""

    dialect: str

    def transaction(self) -> contextlib.AbstractContextManager[None]: ...
    def execute(self, statement: str, *values: Any) -> int: ...
    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...
    def insert(self, table: str, columns: Sequence[str], rows: Rows) -> None: ...
    def insert_with(self, statement: str, rows: Rows) -> None: ...
    def find_table(self, table: str) -> str | None: ...
    def columns(self, table: str) -> list[Column]: ...
    def unique_keys(self, table: str) -> list[set[str]]: ...
    def any_of(self, column: str) -> str: ...
    def values_of(self, values: Sequence[str]) -> Any: ...
    def lock(self, name: str) -> None: ...
    def close(self) -> None: ...


def connect(options: DatabaseOptions) -> Database:
    """Connects to the database of the options. Raises OttlaError if it cannot."""
    if options.url.startswith("sqlite:"):
        return SqliteDatabase(options)
    return PostgresDatabase(options)


def quoted(name: str) -> str:
    """
    >>> quoted("shop.orders"), quoted('odd"name')
    ('"shop"."orders"', '"odd""name"')
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def quoted_column(name: str) -> str:
    """Quotes a column's name, which may contain a dot."""
    return '"' + name.replace('"', '""') + '"'


class SqliteDatabase:
    """SQLite: one file, one writer at a time; the others wait up to `busyTimeoutMs`."""

    dialect = SQLITE

    def __init__(self, options: DatabaseOptions) -> None:
        path = options.url.removeprefix("sqlite:///")
        try:
            # No implicit transactions: transaction() runs BEGIN IMMEDIATE, which waits for the lock before it writes.
            self._connection = sqlite3.connect(path, timeout=options.busy_timeout_ms / 1000, isolation_level=None)
            self._connection.execute("pragma schema_version")
        except sqlite3.Error as error:
            raise DatabaseUnavailable(
                f"cannot open {options.shown_url}: {error}",
                "Does the directory exist, and is the file a SQLite database with write permission?",
            ) from None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def execute(self, statement: str, *values: Any) -> int:
        return self._connection.execute(statement, values).rowcount

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def insert(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        names = ", ".join(quoted_column(column) for column in columns)
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"insert into {quoted(table)} ({names}) values ({marks})", rows)

    def insert_with(self, statement: str, rows: Rows) -> None:
        self._connection.executemany(statement, rows)

    def find_table(self, table: str) -> str | None:
        schema, dot, name = table.rpartition(".")
        master = f"{quoted(schema)}.sqlite_master" if dot else "sqlite_master"
        found = self.query(f"select name from {master} where type = 'table' and lower(name) = lower(?)", name)
        return f"{schema}{dot}{found[0][0]}" if found else None

    def columns(self, table: str) -> list[Column]:
        schema, dot, name = table.rpartition(".")
        call = f"{quoted(schema)}.table_info" if dot else "table_info"
        rows = self.query(f"pragma {call}({quoted_column(name)})")
        # SQLite numbers an INTEGER PRIMARY KEY itself, so the column needs no value.
        return [
            Column(
                name, kind, not required and not key, default is not None or (bool(key) and kind.upper() == "INTEGER")
            )
            for _, name, kind, required, default, key in rows
        ]

    def unique_keys(self, table: str) -> list[set[str]]:
        """The sets of columns that name a row: `on conflict` takes one of these and nothing else."""
        schema, dot, name = table.rpartition(".")
        place = f"{quoted(schema)}." if dot else ""
        primary = {row[1] for row in self.query(f"pragma {place}table_info({quoted_column(name)})") if row[5]}
        found = [primary] if primary else []
        for _, index, is_unique, _, is_partial in self.query(f"pragma {place}index_list({quoted_column(name)})"):
            if is_unique and not is_partial:
                # An indexed expression has no column name.
                found.append({row[2] or "" for row in self.query(f"pragma {place}index_info({quoted_column(index)})")})
        return found

    def any_of(self, column: str) -> str:
        return f"{column} in (select value from json_each(?))"

    def values_of(self, values: Sequence[str]) -> Any:
        return json.dumps(list(values))

    def lock(self, name: str) -> None:
        pass  # BEGIN IMMEDIATE has locked the whole database already

    def close(self) -> None:
        self._connection.close()


class PostgresDatabase:
    """PostgreSQL through psycopg: rows are inserted with COPY."""

    dialect = POSTGRES

    def __init__(self, options: DatabaseOptions) -> None:
        try:
            import psycopg
        except ImportError:
            raise OttlaError(
                f"{options.shown_url} needs psycopg, which is not installed",
                "Run pip install 'ottla[postgres]' on the driver and on the executors.",
            ) from None
        try:
            self._connection = psycopg.connect(options.url, autocommit=True, application_name="ottla")
            self._connection.execute("select set_config('lock_timeout', %s, false)", [str(options.busy_timeout_ms)])
        except psycopg.Error as error:
            raise DatabaseUnavailable(
                f"cannot connect to {options.shown_url}: {str(error).strip()}",
                "Is the server running, and are user, password (also PGPASSWORD or ~/.pgpass) and database correct?",
            ) from None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._connection.transaction():
            yield

    def execute(self, statement: str, *values: Any) -> int:
        return int(self._connection.execute(self._marked(statement), values or None).rowcount)

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._marked(statement), values or None).fetchall()

    def insert(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        names = ", ".join(quoted_column(column) for column in columns)
        with self._connection.cursor() as cursor, cursor.copy(f"copy {quoted(table)} ({names}) from stdin") as copy:
            for row in rows:
                copy.write_row(row)

    def insert_with(self, statement: str, rows: Rows) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(self._marked(statement), rows)

    def find_table(self, table: str) -> str | None:
        schema, dot, name = table.rpartition(".")
        wanted = "table_schema = ?" if dot else "table_schema = any(current_schemas(false))"
        found = self.query(
            f"select table_name from information_schema.tables where {wanted} and lower(table_name) = lower(?) "
            "order by table_name = ? desc",
            *([schema] if dot else []),
            name,
            name,
        )
        return f"{schema}{dot}{found[0][0]}" if found else None

    def columns(self, table: str) -> list[Column]:
        rows = self.query(
            "select attname, format_type(atttypid, null), not attnotnull, "
            "atthasdef or attidentity <> '' or attgenerated <> '', typtype from pg_attribute "
            "join pg_type on pg_type.oid = atttypid "
            "where attrelid = to_regclass(?) and attnum > 0 and not attisdropped order by attnum",
            quoted(table),
        )
        return [
            Column(name, "USER-DEFINED" if kind == "e" else type_name, nullable, default)
            for name, type_name, nullable, default, kind in rows
        ]

    def unique_keys(self, table: str) -> list[set[str]]:
        """The sets of columns that name a row: `on conflict` takes one of these and nothing else."""
        rows = self.query(
            "select array_agg(attname::text) from pg_index join pg_attribute on attrelid = indrelid "
            "and attnum = any((indkey::int2[])[0:indnkeyatts - 1]) where indrelid = to_regclass(?) and indisunique "
            "and indisvalid and indimmediate and indpred is null and indexprs is null group by indexrelid",
            quoted(table),
        )
        return [set(names) for (names,) in rows]

    def any_of(self, column: str) -> str:
        return f"{column} = any(?)"

    def values_of(self, values: Sequence[str]) -> Any:
        return list(values)

    def lock(self, name: str) -> None:
        """Held until the transaction ends; prevents two drivers from creating the same table at the same time."""
        self.execute("select pg_advisory_xact_lock(hashtextextended(?, 0))", name)

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def _marked(statement: str) -> str:
        """Replaces the placeholder `?` by psycopg's %s, and doubles percent signs in names."""
        if "?" not in statement:
            return statement
        parts = statement.replace("%", "%%").split('"')  # every second part is a quoted name, where ? is a character
        return '"'.join(part if index % 2 else part.replace("?", "%s") for index, part in enumerate(parts))
