"""Converts Arrow columns to rows for a database driver. Pure."""

import json
import math
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ottla.spark.database.types import SQLITE

if TYPE_CHECKING:
    import pyarrow

Convert = Callable[[Any], Any]


def rows_of(batch: "pyarrow.RecordBatch", schema: StructType, dialect: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a record batch, each value converted for the database's driver."""
    columns = []
    for field, column in zip(schema.fields, batch.columns, strict=True):
        values = column.to_pylist()
        convert = converter(field.dataType, dialect)
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        columns.append(values)
    return zip(*columns, strict=True)


def converter(spark_type: DataType, dialect: str) -> Convert | None:
    """The conversion of Python values of this type; None if they are inserted unchanged."""
    if isinstance(spark_type, ArrayType | MapType | StructType):
        plain = plainer(spark_type)
        return lambda value: json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))
    if dialect == SQLITE and isinstance(spark_type, DecimalType | DateType):
        return str
    if dialect == SQLITE and isinstance(spark_type, TimestampType | TimestampNTZType):
        # Fixed width, so that text sorts in the order of time.
        return lambda value: value.isoformat(sep=" ", timespec="microseconds")
    return None


def plainer(spark_type: DataType) -> Convert:
    """The conversion of a nested value to what JSON can represent."""
    if isinstance(spark_type, ArrayType):
        item = plainer(spark_type.elementType)
        return lambda values: None if values is None else [item(value) for value in values]
    if isinstance(spark_type, MapType):
        key, mapped = plainer(spark_type.keyType), plainer(spark_type.valueType)
        # Arrow returns a map as a list of pairs.
        return lambda pairs: None if pairs is None else {_key(key(name)): mapped(value) for name, value in pairs}
    if isinstance(spark_type, StructType):
        fields = {field.name: plainer(field.dataType) for field in spark_type.fields}
        return lambda value: None if value is None else {name: plain(value[name]) for name, plain in fields.items()}
    if isinstance(spark_type, BinaryType):
        return lambda value: None if value is None else value.hex()
    return _scalar


def _scalar(value: Any) -> Any:
    if isinstance(value, datetime | date | Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN or infinity
    return value


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
