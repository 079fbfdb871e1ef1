"""Chooses between native code and Python: the compiled record kernels (`_kernels`), or `_pure`; the compiled build of
`single_batch`, or its source.

`_pure` is used with `OTTLA_PURE=1` in the environment, and where the build is missing, belongs to another interpreter,
or is older than the source beside it (`INTERFACE` differs).
"""

import importlib
import os
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ottla.protocol.records import _pure, single_batch


def find_compiled(name: str, interface: int) -> ModuleType | None:
    """A compiled module, or None. A Python source of that name is not used: it would only be slow."""
    if os.environ.get("OTTLA_PURE", "") not in ("", "0"):
        return None
    spec = PathFinder.find_spec(name, sys.modules[name.rpartition(".")[0]].__path__)
    if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
        return None
    try:
        found = importlib.import_module(name)
    except (ImportError, AttributeError, TypeError, ValueError):
        # Not only ImportError: a compiled module that this one uses may be missing or of another build.
        return None
    return found if getattr(found, "INTERFACE", None) == interface else None


def compiled_kernels() -> ModuleType | None:
    return find_compiled(f"{__package__}._kernels", _pure.INTERFACE)


def checksum() -> Callable[..., int]:
    """CRC-32C as `crc32c(buffer, crc=0)`, native if fastcrc can be loaded."""
    try:
        from fastcrc.crc32 import iscsi

        return cast("Callable[..., int]", iscsi)
    except ImportError:
        return _pure.crc32c


_kernels: Any = compiled_kernels()
NATIVE: bool = _kernels is not None
if _kernels is None:
    _kernels = _pure

crc32c: Callable[..., int] = checksum()
if TYPE_CHECKING:
    # Both implementations have the signatures of `_pure`.
    from ottla.protocol.records._pure import (
        decode_records,
        decode_varint,
        encode_batch,
        encode_records,
        encode_varint,
        filter_records,
        inspect_records,
        scan_keys,
        unpack_header,
    )
    from ottla.protocol.records.single_batch import find_single_batch
else:
    unpack_header = _kernels.unpack_header
    encode_batch = _kernels.encode_batch
    encode_records = _kernels.encode_records
    decode_records = _kernels.decode_records
    scan_keys = _kernels.scan_keys
    inspect_records = _kernels.inspect_records
    filter_records = _kernels.filter_records
    encode_varint = _kernels.encode_varint
    decode_varint = _kernels.decode_varint
    _single_batch = find_compiled(f"{__package__}._single_batch", single_batch.INTERFACE) or single_batch
    find_single_batch = _single_batch.find_single_batch

__all__ = [
    "NATIVE",
    "checksum",
    "compiled_kernels",
    "crc32c",
    "decode_records",
    "decode_varint",
    "encode_batch",
    "encode_records",
    "encode_varint",
    "filter_records",
    "find_compiled",
    "find_single_batch",
    "inspect_records",
    "scan_keys",
    "unpack_header",
]
