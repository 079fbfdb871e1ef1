"""The blocking API is what tools/make_blocking.py generates from the async one."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("make_blocking", ROOT / "tools" / "make_blocking.py")
assert spec is not None
assert spec.loader is not None
make_blocking = importlib.util.module_from_spec(spec)
sys.modules["make_blocking"] = make_blocking  # dataclasses look their module up there
spec.loader.exec_module(make_blocking)


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    files: dict[Path, str] = make_blocking.generate()
    return files


@pytest.mark.parametrize("name", make_blocking.FILES)
def test_generated_files_are_current(name: str, generated: dict[Path, str]) -> None:
    path = make_blocking.BLOCKING / name
    assert path.read_text() == generated[path], f"stale; run: {make_blocking.COMMAND}"


def test_every_hand_written_function_is_called_by_a_generated_method(generated: dict[Path, str]) -> None:
    text = "".join(generated.values())
    assert [name for name in make_blocking.hand_written() if f"by_hand.{name}(" not in text] == []
