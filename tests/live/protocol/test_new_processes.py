"""What a new process imports and chooses, and codecs in a process with little memory."""

import os
import struct
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from ottla.protocol.records import _pure
from ottla.protocol.records.compression import Codec
from tests.support.waiting import PATIENCE_S
from tests.support.wire.compressed import bombs

FOLDER = Path(_pure.__file__).parent
needs_extension = pytest.mark.skipif(
    not any((FOLDER / f"_kernels{suffix}").exists() for suffix in EXTENSION_SUFFIXES),
    reason="the extension is not built",
)


def run(program: str, text: str = "", **environment: str) -> str:
    """The output of a program in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=text,
        env={**os.environ, "OTTLA_PURE": "", **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CHOICE = "from ottla.protocol.records import _speedups as s; print(s.NATIVE, s.encode_batch.__module__.split('.')[-1])"


@needs_extension
def test_the_extension_is_used_if_it_is_built() -> None:
    assert run(CHOICE) == "True _kernels"
    assert run(CHOICE, OTTLA_PURE="0") == "True _kernels"


def test_an_environment_variable_selects_the_python_kernels() -> None:
    assert run(CHOICE, OTTLA_PURE="1") == "False _pure"


def test_an_environment_variable_selects_the_python_kernels_for_arrow() -> None:
    pytest.importorskip("pyarrow")
    program = (
        "from ottla.protocol.arrow import arrow_batches as i, arrow_rows as o; print(i.NATIVE, o.NATIVE, "
        "i._decoder.__name__, o._encoder.__name__)"
    )
    found = run(program, OTTLA_PURE="1")
    assert found.split() == ["False", "False", "ottla.protocol.arrow._arrow_pure", "ottla.protocol.arrow._arrow_pure"]


def test_arrow_kernels_without_the_buffers_of_their_build_are_not_used() -> None:
    pytest.importorskip("pyarrow")
    run("""
import sys, types
name = "ottla.protocol.arrow._arrow_buffers"
sys.modules[name] = types.ModuleType(name)
from ottla.protocol.arrow import arrow_batches, arrow_rows
assert not arrow_batches.NATIVE and not arrow_rows.NATIVE
""")


def test_messages_are_imported_on_first_use() -> None:
    run("""
import sys
from ottla.protocol.api import API
loaded = lambda: sorted(name for name in sys.modules if name.startswith("ottla.protocol."))
assert loaded() == ["ottla.protocol.api"], loaded()
API[12].request
assert [name for name in loaded() if ".messages." in name] == ["ottla.protocol.messages.heartbeat"], loaded()
""")


LIMITED = """
import resource, sys
from ottla.protocol.records.compression import CompressionError, decompress, compress
for codec in (1, 2, 3, 4):
    decompress(codec, compress(codec, b"warm up"), 100)
bombs = [(line.split()[0], bytes.fromhex(line.split()[1])) for line in sys.stdin]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20),) * 2)
for codec, bomb in bombs:
    try:
        decompress(int(codec), bomb, max_bytes=4 << 20)
    except CompressionError:
        print("refused", flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to know the memory in use")
def test_native_codecs_do_not_allocate_more_than_the_limit() -> None:
    """Spec: R8. With room for 48 MB, decompression bombs of 256 MB raise an error and do not kill the process."""
    inputs = [item for name, item in bombs(256 << 20).items() if "members" not in name and name != "xerial"]
    # A frame that claims four gigabytes, and a snappy block that does.
    inputs.append((Codec.ZSTD, bytes.fromhex("28b52ffd") + b"\xa0" + struct.pack("<I", 0xFFFFFFFF) + b"\x01\x00\x00"))
    inputs.append((Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 40))
    text = "\n".join(f"{int(codec)} {bomb.hex()}" for codec, bomb in inputs)
    assert run(LIMITED, text).split() == ["refused"] * len(inputs)
