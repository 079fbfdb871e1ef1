"""The sink's own tables, and the one transaction that moves a batch into the target and records it.

Tasks write their rows into a staging table, each attempt under its own token. The driver's `move` is one database
transaction: it moves the rows of the successful attempts to the target, records the batch in the ledger, and deletes
the staging rows. If Spark repeats the newest batch of the ledger, it is not moved again. An older batch is rejected,
because Spark repeats only the newest.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from ottla.errors import OttlaError
from ottla.spark.database.connections import Database, DatabaseUnavailable, Rows, quoted, quoted_column
from ottla.spark.database.options import DatabaseOptions
from ottla.spark.database.types import POSTGRES, Column, check_columns, column_type

LEDGER, CLAIMS = "ottla_ledger", "ottla_claims"
SINK, BATCH, ATTEMPT, SEQUENCE = "ottla_sink", "ottla_batch", "ottla_attempt", "ottla_sequence"
STAGING, LONGEST_NAME = "ottla_staging_", 63
"""PostgreSQL silently truncates longer names, and would not find the table under its full name."""
STAGING_COLUMNS = (SINK, BATCH, ATTEMPT, SEQUENCE)


@dataclass(frozen=True)
class Target:
    """The table to write to, with its name in the database, and its columns in the order of the DataFrame's."""

    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def in_schema(self, name: str) -> str:
        """The full name of another table in the target's schema."""
        schema, dot, _ = self.table.rpartition(".")
        return f"{schema}{dot}{name}"

    @property
    def staging(self) -> str:
        table = self.table.rpartition(".")[2]
        if len(f"{STAGING}{table}".encode()) > LONGEST_NAME:
            table = hashlib.sha256(table.encode()).hexdigest()[:16]
        return self.in_schema(f"{STAGING}{table}")

    @property
    def ledger(self) -> str:
        return self.in_schema(LEDGER)

    @property
    def claims(self) -> str:
        return self.in_schema(CLAIMS)


@dataclass(frozen=True)
class Entry:
    """The ledger's row of a sink."""

    sink: str
    table: str
    batch_id: int
    rows: int
    positions: str | None
    committed_ms: int


# --- before the rows ------------------------------------------------------------------------------------------


def prepare(database: Database, options: DatabaseOptions, schema: StructType) -> Target:
    """Finds or creates the target and the sink's own tables; rejects columns that do not fit."""
    check_names(database, options, schema)
    target = _ready(database, options, schema)
    if target is not None:
        return target
    with database.transaction():
        database.lock("ottla-database")
        if database.find_table(options.table) is None:
            _create_target(database, options, schema)
        target = _target(database, options, schema)
        _create_own_tables(database, target)
    return target


def check_names(database: Database, options: DatabaseOptions, schema: StructType) -> None:
    """Rejects names that PostgreSQL would truncate: it would not find the table or column under its full name."""
    names = [("table", options.table, part, "Choose a shorter one.") for part in options.table.split(".")]
    names += [("column", name, name, "Give it a shorter one in the query with `as`.") for name in schema.names]
    long = [each for each in names if len(each[2].encode()) > LONGEST_NAME]
    if not long or database.dialect != POSTGRES:
        return
    longest = int(database.query("show max_identifier_length")[0][0])  # a build option of PostgreSQL
    for kind, whole, part, hint in long:
        size = len(part.encode())
        if size > longest:
            raise OttlaError(f"the name of {kind} {whole} has {size} bytes; PostgreSQL allows {longest}", hint)


def _ready(database: Database, options: DatabaseOptions, schema: StructType) -> Target | None:
    """The target if nothing has to be created: the usual case, without a lock."""
    if database.find_table(options.table) is None:
        return None
    target = _target(database, options, schema)
    if any(database.find_table(table) is None for table in (target.ledger, target.claims, target.staging)):
        return None
    wanted = {column.name: column.type for column in database.columns(target.table)}
    staged = {column.name: column.type for column in database.columns(target.staging)}
    return target if wanted.items() <= staged.items() else None


def _target(database: Database, options: DatabaseOptions, schema: StructType) -> Target:
    found = database.find_table(options.table)
    assert found is not None
    there = database.columns(found)
    taken = check_columns(schema, options.table, there, database.dialect)
    keys = tuple(_key_column(key, taken) for key in options.upsert_keys)
    check_keys(database, found, keys)
    return Target(found, tuple(taken[field.name] for field in schema.fields), keys)


def _key_column(key: str, taken: dict[str, str]) -> str:
    for name, column in taken.items():
        if name.lower() == key.lower():
            return column
    raise OttlaError(
        f"upsertKeys names {key}, which is not a column of the query ({', '.join(taken)})",
        f"Select {key} in the query, or use other columns.",
    )


def check_keys(database: Database, table: str, keys: Sequence[str]) -> None:
    """Rejects keys without a unique index, which a database needs to replace rows."""
    if not keys or set(keys) in database.unique_keys(table):
        return
    name = table.rpartition(".")[2]
    columns = ", ".join(quoted_column(key) for key in keys)
    index = quoted_column("_".join((name, *keys, "key")))
    raise OttlaError(
        f"upsertKeys is {', '.join(keys)}, and table {table} has no primary key or unique index of exactly "
        f"{'this column' if len(keys) == 1 else 'these columns'}",
        f"Create one: create unique index {index} on {quoted(table if database.dialect == POSTGRES else name)} "
        f"({columns}). Or use the columns of an existing one.",
    )


def _create_target(database: Database, options: DatabaseOptions, schema: StructType) -> None:
    keys = [key.lower() for key in options.upsert_keys]
    parts = [
        f"{quoted_column(field.name)} {column_type(field.dataType, database.dialect, field.name)}"
        for field in schema.fields
    ]
    names = {field.name.lower(): field.name for field in schema.fields}
    if len(names) != len(schema.fields):
        raise OttlaError("two columns of the query have the same name", "Rename one of them with `as`.")
    for key in keys:
        if key not in names:
            _key_column(key, {name: name for name in names.values()})
    if keys:
        parts.append(f"primary key ({', '.join(quoted_column(names[key]) for key in keys)})")
    database.execute(f"create table {quoted(options.table)} ({', '.join(parts)})")


def _create_own_tables(database: Database, target: Target) -> None:
    database.execute(
        f"create table if not exists {quoted(target.ledger)} (sink varchar(100) not null, "
        "target varchar(200) not null, batch_id bigint not null, row_count bigint not null, positions text, "
        "committed_ms bigint not null, primary key (sink, target))"
    )
    database.execute(
        f"create table if not exists {quoted(target.claims)} (sink varchar(100) not null, "
        "target varchar(200) not null, batch_id bigint not null, task integer not null, "
        "primary key (sink, target, batch_id, task))"
    )
    wanted = database.columns(target.table)
    if database.find_table(target.staging) is not None:
        staged = {column.name: column.type for column in database.columns(target.staging)}
        if {column.name: column.type for column in wanted}.items() <= staged.items():
            return
        # The target was altered. A batch with rows in the old staging table notices that they are missing (see
        # `_move_rows`) and is staged again.
        database.execute(f"drop table {quoted(target.staging)}")
    _create_staging(database, target, wanted)


def _create_staging(database: Database, target: Target, wanted: Sequence[Column]) -> None:
    # Unlogged: rows that a server crash deletes were not moved yet; the count notices it and the batch is staged again.
    kind = "unlogged table" if database.dialect == POSTGRES else "table"
    own = f"{SINK} varchar(100), {BATCH} bigint, {ATTEMPT} varchar(100), {SEQUENCE} bigint"
    names = ", ".join(f"{quoted_column(column.name)}" for column in wanted)
    if database.dialect == POSTGRES:
        database.execute(
            f"create {kind} {quoted(target.staging)} as select {names} from {quoted(target.table)} limit 0"
        )
        for column in own.split(", "):
            database.execute(f"alter table {quoted(target.staging)} add column {column}")
        return
    typed = ", ".join(f"{quoted_column(column.name)} {column.type}" for column in wanted)
    database.execute(f"create {kind} {quoted(target.staging)} ({own}, {typed})")


# --- the rows ------------------------------------------------------------------------------------------------


def stage(database: Database, target: Target, sink: str, batch_id: int, attempt: str, rows: Rows, start: int) -> int:
    """Writes rows to the staging table, in one transaction. Returns how many there were."""
    count = 0

    def numbered() -> Iterator[tuple[Any, ...]]:
        nonlocal count
        for row in rows:
            yield (sink, batch_id, attempt, start + count, *row)
            count += 1

    with database.transaction():
        database.insert(target.staging, (*STAGING_COLUMNS, *target.columns), numbered())
    return count


def write_directly(database: Database, target: Target, rows: Rows) -> int:
    """Writes rows into the target itself, in one transaction."""
    kept = list(rows)
    with database.transaction():
        if target.keys:
            marks = ", ".join("?" * len(target.columns))
            names = ", ".join(quoted_column(column) for column in target.columns)
            statement = f"insert into {quoted(target.table)} ({names}) values ({marks}) {_on_conflict(target)}"
            database.insert_with(statement, kept)
        else:
            database.insert(target.table, target.columns, kept)
    return len(kept)


def claim(database: Database, target: Target, sink: str, batch_id: int, task: int) -> bool:
    """At-most-once: claims this task's part of a batch before a row is written. False if it was claimed before."""
    with database.transaction():
        inserted = database.execute(
            f"insert into {quoted(target.claims)} (sink, target, batch_id, task) values (?, ?, ?, ?) "
            "on conflict do nothing",
            sink,
            target.table,
            batch_id,
            task,
        )
    return inserted == 1


# --- after the rows ------------------------------------------------------------------------------------------


def last_batch(database: Database, target: Target, sink: str) -> int:
    """The last batch of a sink that is in the target; -1 before the first."""
    return _last(database, target, sink)[0]


def _last(database: Database, target: Target, sink: str, *, locked: bool = False) -> tuple[int, str | None]:
    """The last batch of a sink, and the end offsets of its sources."""
    lock = " for update" if locked and database.dialect == POSTGRES else ""
    found = database.query(
        f"select batch_id, positions from {quoted(target.ledger)} where sink = ? and target = ?{lock}",
        sink,
        target.table,
    )
    return (int(found[0][0]), found[0][1]) if found else (-1, None)


def check_batch(database: Database, target: Target, sink: str, batch_id: int, positions: str | None) -> None:
    """Rejects a batch whose number is taken by other rows.

    Spark repeats only the newest batch, as it was planned. Any other batch with a number that is in the ledger is
    from a checkpoint that is older than the ledger: skipping it would lose its rows.
    """
    refused = _refusal(_last(database, target, sink), target, sink, batch_id, positions)
    if refused is not None:
        raise refused


def _refusal(
    last: tuple[int, str | None], target: Target, sink: str, batch_id: int, positions: str | None
) -> OttlaError | None:
    last_id, ended = last
    is_another = last_id == batch_id and None not in (positions, ended) and positions != ended
    if last_id <= batch_id and not is_another:
        return None
    has = f"batch {last_id}" if last_id > batch_id else f"a batch {batch_id} with other end offsets"
    return OttlaError(
        f"the checkpoint is older than the table: this is batch {batch_id} of {sink}, and {target.table} already has "
        f"{has}",
        "Nothing was written. Was the checkpoint restored from a backup, or is another driver running on a copy of "
        "it? Continue with the newest checkpoint. Without one, start a new one (inside foreachBatch with another "
        f"sinkId) at the positions that {target.ledger} has for this sink.",
    )


def move(
    database: Database,
    target: Target,
    sink: str,
    batch_id: int,
    attempts: dict[str, int],
    *,
    replace: bool,
    positions: str | None,
    now_ms: int,
) -> bool:
    """Moves a batch into the target and records it, in one transaction. False if it was in the target already.

    `attempts` maps the tokens of successful attempts to their numbers of rows. Raises OttlaError if there is a newer
    batch.
    """
    with database.transaction():
        _open_entry(database, target, sink, now_ms)
        last = _last(database, target, sink, locked=True)
        refused = _refusal(last, target, sink, batch_id, positions)
        fresh = last[0] < batch_id
        if fresh:
            if replace:
                database.execute(f"delete from {quoted(target.table)}")
            rows = _move_rows(database, target, attempts)
            note(database, target, sink, batch_id, rows, positions, now_ms)
        # Also the rows of failed attempts and earlier batches.
        database.execute(f"delete from {quoted(target.staging)} where {SINK} = ? and {BATCH} <= ?", sink, batch_id)
    if refused is not None:
        raise refused
    return fresh


def move_job(database: Database, target: Target, job: str, attempts: dict[str, int], *, replace: bool) -> None:
    """Moves the rows of a batch write, which has no batch id and is never repeated under the same name."""
    with database.transaction():
        if replace:
            database.execute(f"delete from {quoted(target.table)}")
        _move_rows(database, target, attempts)
        database.execute(f"delete from {quoted(target.staging)} where {SINK} = ?", job)


def _open_entry(database: Database, target: Target, sink: str, now_ms: int) -> None:
    """Creates a row to lock, so that two drivers of one sink cannot both find none."""
    database.execute(
        f"insert into {quoted(target.ledger)} (sink, target, batch_id, row_count, committed_ms) "
        "values (?, ?, -1, 0, ?) on conflict do nothing",
        sink,
        target.table,
        now_ms,
    )


def note(
    database: Database, target: Target, sink: str, batch_id: int, rows: int, positions: str | None, now_ms: int
) -> None:
    """Writes the sink's row of the ledger."""
    database.execute(
        f"insert into {quoted(target.ledger)} (sink, target, batch_id, row_count, positions, committed_ms) "
        "values (?, ?, ?, ?, ?, ?) on conflict (sink, target) do update set batch_id = excluded.batch_id, "
        "row_count = excluded.row_count, positions = excluded.positions, committed_ms = excluded.committed_ms",
        sink,
        target.table,
        batch_id,
        rows,
        positions,
        now_ms,
    )
    database.execute(
        f"delete from {quoted(target.claims)} where sink = ? and target = ? and batch_id < ?",
        sink,
        target.table,
        batch_id,
    )


def _move_rows(database: Database, target: Target, attempts: dict[str, int]) -> int:
    expected = sum(attempts.values())
    if not expected:
        return 0
    tokens = database.values_of(sorted(token for token, rows in attempts.items() if rows))
    which = database.any_of(ATTEMPT)
    staged = int(database.query(f"select count(*) from {quoted(target.staging)} where {which}", tokens)[0][0])
    if staged != expected:
        raise DatabaseUnavailable(
            f"{staged} of {expected} staged rows are still in {target.staging}",
            "Nothing was written. Restart the query: the batch is staged again. "
            "Was the table emptied, or did the server crash?",
        )
    names = ", ".join(quoted_column(column) for column in target.columns)
    chosen, order = names, ""
    if target.keys:
        keys = ", ".join(quoted_column(key) for key in target.keys)
        if database.dialect == POSTGRES:
            # One row for each key, the last one: PostgreSQL cannot replace a row twice in one statement.
            chosen, order = f"distinct on ({keys}) {names}", f"order by {keys}, {ATTEMPT} desc, {SEQUENCE} desc"
        else:
            order = f"order by {ATTEMPT}, {SEQUENCE}"
    conflict = _on_conflict(target) if target.keys else ""
    database.execute(
        f"insert into {quoted(target.table)} ({names}) select {chosen} from {quoted(target.staging)} "
        f"where {which} {order} {conflict}",
        tokens,
    )
    return staged


def _on_conflict(target: Target) -> str:
    keys = ", ".join(quoted_column(key) for key in target.keys)
    others = [column for column in target.columns if column not in target.keys]
    if not others:
        return f"on conflict ({keys}) do nothing"
    changes = ", ".join(f"{quoted_column(column)} = excluded.{quoted_column(column)}" for column in others)
    return f"on conflict ({keys}) do update set {changes}"


def drop_attempts(database: Database, target: Target, tokens: Sequence[str]) -> None:
    """Deletes the staged rows of attempts that do not count."""
    with database.transaction():
        database.execute(
            f"delete from {quoted(target.staging)} where {database.any_of(ATTEMPT)}", database.values_of(tokens)
        )


def entries(database: Database, options: DatabaseOptions) -> list[Entry]:
    """The ledger's rows for this table, newest first; empty without a ledger."""
    found = database.find_table(options.table) or options.table
    ledger = Target(found, ()).ledger
    if database.find_table(ledger) is None:
        return []
    rows = database.query(
        f"select sink, target, batch_id, row_count, positions, committed_ms from {quoted(ledger)} "
        "where target = ? and batch_id >= 0 order by committed_ms desc",
        found,
    )
    return [Entry(*row) for row in rows]
