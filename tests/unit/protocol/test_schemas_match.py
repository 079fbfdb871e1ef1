"""Our tables against the published schemas: every message, field by field and version by version."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.wire.messages import every_message

from ottla.protocol.api import snake_case
from ottla.protocol.schema import Field, Message, Struct
from ottla.types import ZERO_UUID

SCHEMAS = Path(__file__).parents[4] / "shared" / "handbook" / "schemas"
OURS = {cls.__name__: cls for cls in every_message()}

PLAIN_DEFAULTS: dict[str, Any] = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "uuid": ZERO_UUID}


def published() -> dict[str, dict[str, Any]]:
    """The published schemas by name, without those that have no versions left."""
    found = {}
    for path in sorted(SCHEMAS.glob("*/*.json")):
        # Comments stand on lines of their own, or after the last quote of a line.
        text = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE)
        schema = json.loads(text)
        if schema["validVersions"] != "none":
            found[schema["name"]] = schema
    return found


PUBLISHED = published() if SCHEMAS.is_dir() else {}
pytestmark = pytest.mark.skipif(not PUBLISHED, reason=f"the published schemas are not at {SCHEMAS}")


class Line(NamedTuple):
    """All that matters of a field in one version."""

    path: str
    type: str
    tag: int | None
    nullable: bool
    default: Any
    compact: bool


def bounds(text: str | None) -> tuple[int, int]:
    if text is None or text == "none":
        return (1, 0)
    if text.endswith("+"):
        return (int(text[:-1]), 2**15)
    first, _, last = text.partition("-")
    return (int(first), int(last or first))


def has(text: str | None, version: int) -> bool:
    first, last = bounds(text)
    return first <= version <= last


def published_default(entry: dict[str, Any]) -> Any:
    # A default of "null" is null; one of null, without quotes, is none at all to those who read the schemas.
    kind, default = entry["type"], "absent" if entry.get("default") is None else entry["default"]
    if default == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind == "records":
        return None
    if kind.startswith(("int", "uint")):
        return 0 if default == "absent" else int(str(default), 0)
    if kind == "bool":
        return str(default).lower() == "true"
    if kind in PLAIN_DEFAULTS:
        return PLAIN_DEFAULTS[kind] if default == "absent" else type(PLAIN_DEFAULTS[kind])(default)
    return "defaults of the struct"


def published_lines(schema: dict[str, Any], version: int) -> list[Line]:
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}

    def walk(fields: list[dict[str, Any]], path: str) -> Iterator[Line]:
        for entry in fields:
            if not has(entry.get("versions") or entry["taggedVersions"], version):
                continue
            here = f"{path}{snake_case(entry['name'])}"
            tagged = has(entry.get("taggedVersions"), version)
            yield Line(
                here,
                entry["type"],
                entry["tag"] if tagged else None,
                has(entry.get("nullableVersions"), version),
                published_default(entry),
                entry.get("flexibleVersions") != "none",
            )
            inner = entry.get("fields") or common.get(entry["type"].removeprefix("[]"), [])
            yield from walk(inner, f"{here}.")

    return list(walk(schema["fields"], ""))


def our_lines(cls: type[Struct], version: int, path: str = "") -> Iterator[Line]:
    for field in cls._fields:
        if version not in field.versions:
            continue
        default = field.default()
        if isinstance(default, Struct):
            default = "defaults of the struct"
        nullable = version in field.nullable
        yield Line(f"{path}{field.name}", field.type, field.tag, nullable, default, field.compact)
        if field.struct is not None:
            yield from our_lines(field.struct, version, f"{path}{field.name}.")


@pytest.mark.parametrize("name", PUBLISHED)
def test_our_table_is_the_published_one(name: str) -> None:
    """B1: the versions a client may use are the ones Kafka publishes."""
    schema, cls = PUBLISHED[name], OURS[name]
    first, last = bounds(schema["validVersions"])
    assert cls.versions == range(first, last + 1)
    assert cls.api_key == schema.get("apiKey", -1)
    for version in cls.versions:
        assert cls.is_flexible(version) == has(schema["flexibleVersions"], version)
        assert list(our_lines(cls, version)) == published_lines(schema, version)


def every_field(cls: type[Message]) -> Iterator[tuple[str, Field]]:
    for struct in [cls, *(value for value in vars(cls).values() if isinstance(value, type))]:
        for field in struct._fields:
            yield f"{struct.__name__}.{field.name}", field


@pytest.mark.parametrize("name", PUBLISHED)
def test_only_the_published_fields_may_be_dropped_silently(name: str) -> None:
    schema, cls = PUBLISHED[name], OURS[name]
    ignorable = {}

    def walk(fields: list[dict[str, Any]], struct: str) -> None:
        for entry in fields:
            key = f"{struct}.{snake_case(entry['name'])}"
            ignorable[key] = str(entry.get("ignorable", False)).lower() == "true"
            walk(entry.get("fields", []), entry["type"].removeprefix("[]"))

    walk(schema["fields"], name)
    for struct in schema.get("commonStructs", []):
        walk(struct["fields"], struct["name"])
    for key, field in every_field(cls):
        lacking = [version for version in cls.versions if version not in field.versions]
        if lacking:
            assert field.ignorable == ignorable[key], key


def test_nothing_published_is_missing_and_nothing_is_invented() -> None:
    assert set(OURS) == set(PUBLISHED)
