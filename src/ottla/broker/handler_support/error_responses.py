"""The response that says "all of it failed" in the words of each API. Pure.

Where a response has an error code of its own, that is set. Where it has one for each topic, partition or
resource, the request's items are mirrored, each with the code: the lists of a request and of its response
have the same shape, and items are known by the same few fields.
"""

from typing import Any

from ottla.errors import ErrorCode
from ottla.protocol.schema import Field, Struct

_PARTITION = ("partition_index", "partition", "index")
_KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_PARTITION, _PARTITION),
    "name": ("name", "topic"),
    "topic": ("topic", "name"),
    "topic_id": ("topic_id",),
    "resource_type": ("resource_type",),
    "resource_name": ("resource_name",),
    "group_id": ("group_id",),
    "producer_id": ("producer_id",),
    "transactional_id": ("transactional_id",),
}
"""A field of a response that says which item it is about, and the names it may have in the request."""


_CODES = {"error_code", "partition_error_code"}
_SAID_TWICE = {"MetadataResponse"}
"""What has an error of its own, and one for each item as in its earlier versions: clients may look at either."""
_NOTHING = {"protocol_name"}
"""What a failure has none of, and says so as soon as its version can (JoinGroup v7)."""


def error_response(response: type[Struct], request: Struct, version: int, code: ErrorCode, detail: str) -> Any:
    """A `response` saying that everything in `request` failed, or None where it has no place for that."""
    answer = response()
    return answer if _fill(answer, request, version, code, detail) else None


def _fill(answer: Any, asked: Any, version: int, code: ErrorCode, detail: str) -> bool:
    """Sets the error in `answer`, or in each of its items. Whether there was a place for it."""
    fields = {f.name: f for f in answer._fields if version in f.versions and f.tag is None}
    for name in fields:
        for key in _KEYS.get(name, ()):
            value = getattr(asked, key, None)
            if value is not None:
                setattr(answer, name, value)
    for name in _CODES & fields.keys():
        setattr(answer, name, code)
        for nothing in _NOTHING & fields.keys():
            if version in fields[nothing].nullable:
                setattr(answer, nothing, None)
        if "error_message" in fields:
            answer.error_message = detail or None
        if type(answer).__name__ in _SAID_TWICE:
            _fill_items(answer, asked, fields, version, code, detail)
        return True
    return _fill_items(answer, asked, fields, version, code, detail)


def _fill_items(answer: Any, asked: Any, fields: dict[str, Any], version: int, code: ErrorCode, detail: str) -> bool:
    lists = [f for f in fields.values() if f.is_array and f.struct is not None and _can_fail(f, version)]
    if not lists:
        return False
    items = []
    for item in _items(asked, version):
        filled = lists[0].struct()
        if isinstance(item, Struct):
            _fill(filled, item, version, code, detail)
        else:
            _fill_plain(filled, item, version, code, detail)
        items.append(filled)
    setattr(answer, lists[0].name, items)
    return True


def _can_fail(declared: Field, version: int) -> bool:
    """Whether an error code is somewhere in the items of a list."""
    struct = declared.struct
    if struct is None:
        return False
    fields = [f for f in struct._fields if version in f.versions and f.tag is None]
    return any(f.name in _CODES or (f.is_array and _can_fail(f, version)) for f in fields)


def _items(asked: Any, version: int) -> list[Any]:
    """The things a request asks for: the first list it has in this version, empty for "all there are"."""
    for declared in asked._fields:
        if declared.is_array and version in declared.versions:
            return getattr(asked, declared.name) or []
    return []


def _fill_plain(answer: Any, asked: Any, version: int, code: ErrorCode, detail: str) -> None:
    """An item that the request gave as a bare name or number."""
    for declared in answer._fields:
        if version in declared.versions and isinstance(asked, type(declared.default())):
            setattr(answer, declared.name, asked)
            break
    _fill(answer, answer, version, code, detail)
