"""Parses the JSON of records, and finds which records are bad and why: expressions on Spark's columns."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

CORRUPT = "_ottla_corrupt"
PARSED = "_ottla_parsed"
VALUE, END = "_ottla_value", "_ottla_end"
"""Spark's JSON parser stops at the end of an object and ignores trailing text. To detect it, the value is wrapped:
{"_ottla_value": [VALUE], "_ottla_end": true}. Trailing text is then a syntax error or a second item, or it hides the
second field."""
PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
SHOWN = 200
"""How many characters of a bad value are shown."""


def parsed(frame: "DataFrame", schema: "StructType") -> "DataFrame":
    """The records with one more column: their values, parsed."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

    wrapper = StructType(
        [
            StructField(VALUE, ArrayType(schema)),
            StructField(END, BooleanType()),
            StructField(CORRUPT, StringType()),
        ]
    )
    text = f.concat(f.lit(f'{{"{VALUE}":['), f.col("value").cast("string"), f.lit(f'],"{END}":true}}'))
    return frame.withColumn(PARSED, f.from_json(text, wrapper, PERMISSIVE))


def parsed_value() -> "Column":
    """The parsed value of a good record."""
    from pyspark.sql import functions as f

    return f.get(f.col(PARSED).getField(VALUE), f.lit(0))  # null if there is none, also in ANSI mode


def is_bad() -> "Column":
    from pyspark.sql import functions as f

    found = f.col(PARSED)
    is_alone = f.coalesce(f.size(found.getField(VALUE)) == 1, f.lit(False))
    is_whole = (
        is_alone & parsed_value().isNotNull() & found.getField(END).isNotNull() & found.getField(CORRUPT).isNull()
    )
    return f.col("value").isNull() | ~is_whole


def bad_column(schema: "StructType") -> "Column":
    """The first column of the schema whose field has another type; null if the record is bad for another reason."""
    from pyspark.sql import functions as f

    return f.coalesce(*[f.when(_is_wrong(field, schema), f.lit(field.name)) for field in schema.fields])


def reason(schema: "StructType") -> "Column":
    """Why a record is bad. Spark evaluates this for bad records only."""
    from pyspark.sql import functions as f

    shown = f.substring(f.col("value").cast("string"), 1, SHOWN)
    cases = f.when(f.col("value").isNull(), f.lit("it has no value"))
    cases = cases.when(_fields().isNull(), f.concat(f.lit("its value is not a JSON object: "), shown))
    for field in schema.fields:
        field_shown = f.substring(f.element_at(_fields(), field.name), 1, SHOWN)
        text = f"column {field.name} is not {field.dataType.simpleString()}: "
        cases = cases.when(_is_wrong(field, schema), f.concat(f.lit(text), field_shown, f.lit(" in "), shown))
    return cases.otherwise(f.concat(f.lit("its value is not exactly one JSON object: "), shown))


def _fields() -> "Column":
    """The fields of a value as text, by name; null if it is not a JSON object."""
    from pyspark.sql import functions as f

    return f.from_json(f.col("value").cast("string"), "map<string,string>")


def _is_wrong(field: "StructField", schema: "StructType") -> "Column":
    """Whether a field is present and does not have the type of its column."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    text, is_present = f.col("value").cast("string"), f.element_at(_fields(), field.name).isNotNull()
    if not isinstance(field.dataType, StructType):
        return is_present & f.from_json(text, schema).getField(field.name).isNull()
    # Spark keeps the fields of a struct that it can parse, so the struct is not null.
    alone = StructType([field, StructField(CORRUPT, StringType())])
    return is_present & f.from_json(text, alone, PERMISSIVE).getField(CORRUPT).isNotNull()
