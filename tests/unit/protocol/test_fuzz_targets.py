"""Spec: R8. The fuzzer's targets with random input. tools/fuzz runs them guided by coverage."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def load_targets() -> ModuleType:
    path = Path(__file__).parents[3] / "tools" / "fuzz" / "targets.py"
    spec = importlib.util.spec_from_file_location("fuzz_targets", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TARGETS = load_targets().TARGETS

# Mostly what decoders stumble over: small numbers, all ones, the ends of varints, magic bytes.
awkward = st.lists(
    st.sampled_from(
        [b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff",
         b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x82SNAPPY\x00", b"0\n", b"1\n"]
    ),
    max_size=60,
).map(b"".join)  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300) | awkward | st.tuples(awkward, st.binary(max_size=80)).map(b"".join))
def test_any_bytes_are_decoded_or_raise_the_documented_error(name: str, data: bytes) -> None:
    TARGETS[name](data)
