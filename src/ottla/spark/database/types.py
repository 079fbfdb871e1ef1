"""Maps Spark types to column types, and checks whether an existing column can hold a Spark type. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from ottla.errors import OttlaError

SQLITE, POSTGRES = "sqlite", "postgresql"
# SQLite keeps 15 significant digits of a number with a fraction; longer decimals stay exact as text.
SQLITE_EXACT_DIGITS = 15

_SIMPLE: dict[type[DataType], tuple[str, str]] = {
    BooleanType: ("boolean", "boolean"),
    ByteType: ("integer", "smallint"),
    ShortType: ("integer", "smallint"),
    IntegerType: ("integer", "integer"),
    LongType: ("integer", "bigint"),
    FloatType: ("real", "real"),
    DoubleType: ("real", "double precision"),
    StringType: ("text", "text"),
    VarcharType: ("text", "text"),
    CharType: ("text", "text"),
    BinaryType: ("blob", "bytea"),
    DateType: ("text", "date"),
    TimestampType: ("text", "timestamp with time zone"),
    TimestampNTZType: ("text", "timestamp without time zone"),
    ArrayType: ("text", "jsonb"),
    MapType: ("text", "jsonb"),
    StructType: ("text", "jsonb"),
}
_TEXTS = frozenset({"text", "character varying", "character", "json", "jsonb", "uuid", "citext", "USER-DEFINED"})
# Other types of an existing PostgreSQL column that can hold every value of the type that a new table would get.
_WIDER: dict[str, frozenset[str]] = {
    "smallint": frozenset({"integer", "bigint", "numeric", "real", "double precision"}),
    "integer": frozenset({"bigint", "numeric", "double precision"}),
    "bigint": frozenset({"numeric"}),
    "real": frozenset({"double precision", "numeric"}),
    "double precision": frozenset({"numeric"}),
    "text": _TEXTS,
    "date": frozenset({"timestamp without time zone"}),
    "jsonb": frozenset({"json", "text"}),
}


@dataclass(frozen=True)
class Column:
    """One column of an existing table."""

    name: str
    type: str
    nullable: bool = True
    has_default: bool = False


def column_type(spark_type: DataType, dialect: str, column: str) -> str:
    """The type that a new column gets.

    >>> column_type(LongType(), POSTGRES, "id"), column_type(DecimalType(10, 2), SQLITE, "price")
    ('bigint', 'numeric')
    """
    if isinstance(spark_type, DecimalType):
        if dialect == POSTGRES:
            return f"numeric({spark_type.precision},{spark_type.scale})"
        return "numeric" if spark_type.precision <= SQLITE_EXACT_DIGITS else "text"
    pair = _SIMPLE.get(type(spark_type))
    if pair is None:
        raise OttlaError(
            f"column {column} is {spark_type.simpleString()}, for which the database has no column type",
            f"Select cast({column} as string) as {column}, or omit the column.",
        )
    return pair[1] if dialect == POSTGRES else pair[0]


def check_columns(schema: StructType, table: str, there: Sequence[Column], dialect: str) -> dict[str, str]:
    """Maps the columns of the DataFrame to those of the table. Raises OttlaError if one is missing or does not fit."""
    exact = {column.name: column for column in there}
    loose = {column.name.lower(): column for column in there}
    taken: dict[str, str] = {}
    for field in schema.fields:
        column = exact.get(field.name) or loose.get(field.name.lower())
        if column is None:
            names = ", ".join(exact)
            raise OttlaError(
                f"table {table} has no column {field.name}; it has {names}",
                f"Add it (alter table {table} add column {field.name} "
                f"{column_type(field.dataType, dialect, field.name)}), or omit it from the query.",
            )
        if not fits(field.dataType, column, dialect, field.name):
            raise OttlaError(
                f"column {field.name} is {field.dataType.simpleString()} in the query "
                f"and {column.type} in table {table}",
                f"Cast it in the query, or change the column to {column_type(field.dataType, dialect, field.name)}.",
            )
        taken[field.name] = column.name
    if len(set(taken.values())) != len(taken):
        raise OttlaError(
            f"two columns of the query match the same column of table {table}",
            "Give them names that differ by more than case.",
        )
    for column in there:
        if not column.nullable and not column.has_default and column.name not in taken.values():
            raise OttlaError(
                f"table {table} needs a value for column {column.name}, and the query has no such column",
                "Select it in the query, or give the column a default.",
            )
    return taken


def fits(spark_type: DataType, column: Column, dialect: str, name: str) -> bool:
    """Whether a column of the table can hold every value of a Spark type."""
    wanted = column_type(spark_type, dialect, name)
    if dialect == SQLITE:
        return _fits_sqlite(wanted, affinity(column.type))
    base = wanted.partition("(")[0]
    return column.type == base or column.type in _WIDER.get(base, frozenset())


def _fits_sqlite(wanted: str, there: str) -> bool:
    # SQLite stores any value in any column. Only text that would silently stay text in a numeric column is rejected.
    if there in ("blob", "numeric") or wanted == "boolean":
        return True
    mine = affinity(wanted)
    if mine == there:
        return True
    return there == "text" if mine in ("text", "numeric") else (mine, there) in {("integer", "real"), ("blob", "text")}


def affinity(declared: str) -> str:
    """The type affinity of a declared type, by SQLite's rules.

    >>> affinity("BIGINT"), affinity("varchar(20)"), affinity("double precision"), affinity("decimal(10,2)")
    ('integer', 'text', 'real', 'numeric')
    """
    text = declared.upper()
    if "INT" in text:
        return "integer"
    if re.search("CHAR|CLOB|TEXT", text):
        return "text"
    if not text or "BLOB" in text:
        return "blob"
    if re.search("REAL|FLOA|DOUB", text):
        return "real"
    return "numeric"
