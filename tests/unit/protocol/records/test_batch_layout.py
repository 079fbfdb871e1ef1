"""The layout of a record batch is defined once; the compiled kernels and struct formats agree with it."""

import ast
import struct
from pathlib import Path

import pytest

from ottla.client.producer import hot_path
from ottla.protocol.records import _pure, _speedups, batch_layout
from ottla.protocol.records.record_batch import BatchHeader, Codec, build_batch, control_batch, read_header

KERNELS = {
    "records/_kernels.py": {"_HEADER_SIZE": "HEADER_SIZE", "_RECORD_SIZE_MIN": "RECORD_SIZE_MIN"},
    "arrow/_arrow_decode.py": {"_RECORD_SIZE_MIN": "RECORD_SIZE_MIN"},
    "arrow/_arrow_encode.py": {"_RECORD_OVERHEAD": "RECORD_OVERHEAD"},
}


def c_constants(path: Path) -> dict[str, int]:
    """The module-level `NAME = cython.declare(type, number)` of a kernel's source."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.value.args) == 2:
            name, value = node.targets[0], node.value.args[1]
            if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, int):
                found[name.id] = value.value
    return found


@pytest.mark.parametrize("file_name", KERNELS)
def test_the_c_constants_of_a_kernel_are_those_of_the_layout(file_name: str) -> None:
    constants = c_constants(Path(_pure.__file__).parents[1] / file_name)
    for in_c, in_layout in KERNELS[file_name].items():
        assert constants[in_c] == getattr(batch_layout, in_layout)


def test_the_hot_path_of_producers_has_the_overhead_of_the_layout() -> None:
    assert hot_path.RECORD_OVERHEAD_BYTES == batch_layout.RECORD_OVERHEAD


def test_the_struct_formats_add_up_to_the_positions() -> None:
    assert struct.calcsize(batch_layout.HEADER_FORMAT) == batch_layout.HEADER_SIZE
    assert struct.calcsize(batch_layout.UNTIL_CRC_FORMAT) == batch_layout.CRC_END
    until, after = batch_layout.UNTIL_CRC_FORMAT, batch_layout.AFTER_CRC_FORMAT
    assert until + after.removeprefix(">") == batch_layout.HEADER_FORMAT
    assert struct.calcsize(">q") == batch_layout.LENGTH_POSITION
    assert struct.calcsize(">qi") == batch_layout.LENGTH_END
    assert struct.calcsize(">qii") == batch_layout.MAGIC_POSITION
    assert struct.calcsize(">qiibI") == batch_layout.CRC_END


def test_the_kernel_in_use_reads_every_field_at_its_position() -> None:
    fields = (0x0102030405060708, 4_000, 7, batch_layout.MAGIC, 0xFEDCBA98, 0x70, 3, 11, 12, 13, 14, 15, 16)
    header = BatchHeader(*fields)
    assert read_header(struct.pack(batch_layout.HEADER_FORMAT, *header)) == header
    assert _speedups.unpack_header(BatchHeader, struct.pack(batch_layout.HEADER_FORMAT, *header), 0) == header


@pytest.mark.parametrize(
    ("batch", "bits"),
    [
        (build_batch([(1, None, b"v", ())]), 0),
        (build_batch([(1, None, b"v", ())], codec=Codec.ZSTD), int(Codec.ZSTD)),
        (build_batch([(1, None, b"v", ())], transactional=True), batch_layout.TRANSACTIONAL),
        (build_batch([(1, None, b"v", ())], log_append_time=True), batch_layout.LOG_APPEND_TIME),
        (
            control_batch(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=1),
            batch_layout.TRANSACTIONAL | batch_layout.CONTROL,
        ),
    ],
)
def test_a_batch_carries_the_bits_it_was_built_with(batch: bytes, bits: int) -> None:
    assert batch[batch_layout.ATTRIBUTES_LOW_POSITION] == bits == read_header(batch).attributes
    assert batch[batch_layout.MAGIC_POSITION] == batch_layout.MAGIC
    length = int.from_bytes(batch[batch_layout.LENGTH_POSITION : batch_layout.LENGTH_END], "big")
    assert len(batch) == batch_layout.LENGTH_END + length
    crc = int.from_bytes(batch[batch_layout.MAGIC_POSITION + 1 : batch_layout.CRC_END], "big")
    assert crc == _speedups.crc32c(batch[batch_layout.CRC_END :])
