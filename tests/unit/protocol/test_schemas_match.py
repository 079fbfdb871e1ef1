"""The message tables against the definitions in Apache Kafka's jars: every field in every version.

The jars come from `./run setup-extras`. A table may know versions that are newer than the jars, never fewer.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ottla.protocol.api import API, snake_case
from ottla.protocol.schema import Field, Message, Struct
from ottla.types import ZERO_UUID
from tests.support.processes.oracle import extras_directory
from tests.support.wire.messages import every_message

JARS = extras_directory() / "kafka"
MODULES = ("clients", "group-coordinator", "share-coordinator", "transaction-coordinator")
OURS = {cls.__name__: cls for cls in every_message()}

PLAIN_DEFAULTS: dict[str, Any] = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "uuid": ZERO_UUID}

NOT_IN_TABLES = re.compile(
    # Records of KRaft's metadata log.
    r"LeaderChangeMessage|Snapshot(Header|Footer)Record|KRaftVersionRecord|VotersRecord"
    # How a broker passes a client's identity on in an Envelope.
    r"|DefaultPrincipalData"
)
"""Published messages without an API key that Ottla neither reads nor writes."""

# The tables follow Kafka 4.4. What it changed in versions that the jars of 4.3 have, too:
RENAMED = {("TxnOffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch"}
TAGGED_FIELDS_ADDED = {
    ("StreamsGroupMetadataValue", "stored_description_topology_epoch"),
    ("StreamsGroupMetadataValue", "failed_description_topology_epoch"),
}


def published() -> dict[str, dict[str, Any]]:
    """The published definitions by name, without those that have no versions left."""
    found = {}
    for module in MODULES:
        for jar in JARS.glob(f"kafka-{module}-[0-9]*.jar"):
            with zipfile.ZipFile(jar) as archive:
                for entry in archive.namelist():
                    if re.fullmatch(r"common/message/\w+\.json", entry):
                        # Comments stand on lines of their own.
                        text = re.sub(r"^\s*//.*$", "", archive.read(entry).decode(), flags=re.MULTILINE)
                        schema = json.loads(text)
                        if schema["validVersions"] != "none":
                            found[schema["name"]] = schema
    return dict(sorted(found.items()))


PUBLISHED = published()
SHARED = [name for name in PUBLISHED if name in OURS]
pytestmark = pytest.mark.skipif(not PUBLISHED, reason=f"no Apache Kafka jars in {JARS}: run ./run setup-extras")


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
    # The string "null" is a default of null. A JSON null means that there is no default.
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


def name_of(message: str, entry: dict[str, Any]) -> str:
    name = snake_case(entry["name"])
    return RENAMED.get((message, name), name)


def published_lines(schema: dict[str, Any], version: int) -> list[Line]:
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}

    def walk(fields: list[dict[str, Any]], path: str) -> Iterator[Line]:
        for entry in fields:
            if not has(entry.get("versions") or entry["taggedVersions"], version):
                continue
            here = path + name_of(schema["name"], entry)
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


@pytest.mark.parametrize("name", SHARED)
def test_a_table_has_the_published_fields_in_every_version(name: str) -> None:
    """Spec: B2."""
    schema, cls = PUBLISHED[name], OURS[name]
    first, last = bounds(schema["validVersions"])
    assert cls.versions[0] == first
    assert cls.versions[-1] >= last
    assert cls.api_key == schema.get("apiKey", -1)
    for version in range(first, last + 1):
        assert cls.is_flexible(version) == has(schema["flexibleVersions"], version)
        ours = [line for line in our_lines(cls, version) if (name, line.path) not in TAGGED_FIELDS_ADDED]
        assert ours == published_lines(schema, version)


def every_field(cls: type[Message]) -> Iterator[tuple[str, Field]]:
    nested = [value for value in vars(cls).values() if isinstance(value, type) and issubclass(value, Struct)]
    for struct in (cls, *nested):
        for field in struct._fields:
            yield f"{struct.__name__}.{field.name}", field


@pytest.mark.parametrize("name", SHARED)
def test_only_fields_published_as_ignorable_are_dropped_in_versions_without_them(name: str) -> None:
    schema, cls = PUBLISHED[name], OURS[name]
    ignorable = {}

    def walk(fields: list[dict[str, Any]], struct: str) -> None:
        for entry in fields:
            key = f"{struct}.{name_of(name, entry)}"
            ignorable[key] = str(entry.get("ignorable", False)).lower() == "true"
            walk(entry.get("fields", []), entry["type"].removeprefix("[]"))

    walk(schema["fields"], name)
    for struct in schema.get("commonStructs", []):
        walk(struct["fields"], struct["name"])
    first, last = bounds(schema["validVersions"])
    for key, field in every_field(cls):
        with_field = [version for version in range(first, last + 1) if version in field.versions]
        if 0 < len(with_field) < last + 1 - first and (name, field.name) not in TAGGED_FIELDS_ADDED:
            assert field.ignorable == ignorable[key], key


def test_every_published_message_has_a_table_or_a_reason_not_to_have_one() -> None:
    without_table = {
        f"{api.name}{kind}" for api in API.values() if api.package is None for kind in ("Request", "Response")
    }
    missing = PUBLISHED.keys() - OURS.keys() - without_table
    assert {name for name in missing if not NOT_IN_TABLES.fullmatch(name)} == set()


def test_the_list_of_apis_has_the_published_names_and_versions() -> None:
    for name, schema in PUBLISHED.items():
        if schema["type"] == "request":
            api = API[schema["apiKey"]]
            first, last = bounds(schema["validVersions"])
            assert f"{api.name}Request" == name
            assert (api.min_version, api.max_version >= last) == (first, True)
            assert [api.is_flexible(version) for version in range(first, last + 1)] == [
                has(schema["flexibleVersions"], version) for version in range(first, last + 1)
            ]
