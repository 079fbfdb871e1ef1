"""The generated files of the client are what tools/make_blocking.py writes, to the letter.

tests/unit/client/blocking/test_generated_classes.py compares their classes without a child process.
"""

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


@pytest.mark.parametrize("path", make_blocking.drafts(), ids=lambda path: path.name)
def test_generated_files_are_current(path: Path, generated: dict[Path, str]) -> None:
    assert path.read_text() == generated[path], f"stale; run: {make_blocking.COMMAND}"
