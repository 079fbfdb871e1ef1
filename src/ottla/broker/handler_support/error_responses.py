"""The response of each API to a request that failed as a whole. Pure.

If a response has a top-level error code, that is set. If it has one for each topic, partition or resource, the items
of the request are repeated, each with the code: the lists of a request and its response have the same shape, and a few
fields identify their items.
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
    "entity_type": ("entity_type",),
    "entity_name": ("entity_name",),
}
"""Fields of a response that identify an item, and their possible names in the request."""


_CODES = {"error_code", "partition_error_code"}
_REPEATED_FOR_EACH_ITEM = {"AlterPartitionReassignmentsResponse", "ElectLeadersResponse", "MetadataResponse"}
"""Responses with a top-level error code that repeat it for each item, as in earlier versions: clients check either."""
_NULL_AFTER_ERRORS = {"protocol_name"}
"""Fields that are null in an error response, in versions where they can be (JoinGroup v7)."""


def error_response(response: type[Struct], request: Struct, version: int, code: ErrorCode, detail: str) -> Any:
    """A `response` that reports an error for everything in `request`; None if it has no field for that."""
    answer = response()
    return answer if _fill(answer, request, version, code, detail) else None


def _fill(answer: Any, asked: Any, version: int, code: ErrorCode, detail: str) -> bool:
    """Sets the error in `answer`, or in each of its items. Returns whether there was a field for it."""
    fields = {f.name: f for f in answer._fields if version in f.versions and f.tag is None}
    for name in fields:
        for key in _KEYS.get(name, ()):
            value = getattr(asked, key, None)
            if value is not None:
                setattr(answer, name, value)
    for name in _CODES & fields.keys():
        setattr(answer, name, code)
        for nothing in _NULL_AFTER_ERRORS & fields.keys():
            if version in fields[nothing].nullable:
                setattr(answer, nothing, None)
        if "error_message" in fields:
            answer.error_message = detail or None
        if type(answer).__name__ in _REPEATED_FOR_EACH_ITEM:
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
    """Whether the items of a list have an error code."""
    struct = declared.struct
    if struct is None:
        return False
    fields = [f for f in struct._fields if version in f.versions and f.tag is None]
    return any(f.name in _CODES or (f.is_array and _can_fail(f, version)) for f in fields)


def _items(asked: Any, version: int) -> list[Any]:
    """The items of a request: its first list in this version; empty if it requests all."""
    for declared in asked._fields:
        if declared.is_array and version in declared.versions:
            return getattr(asked, declared.name) or []
    return []


def _fill_plain(answer: Any, asked: Any, version: int, code: ErrorCode, detail: str) -> None:
    """An item that is a plain name or number in the request."""
    for declared in answer._fields:
        if version in declared.versions and isinstance(asked, type(declared.default())):
            setattr(answer, declared.name, asked)
            break
    _fill(answer, answer, version, code, detail)
