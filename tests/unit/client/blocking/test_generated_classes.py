"""The generated files of the client have the code that tools/make_blocking.py generates.

tests/live/client/test_generated_files.py compares the text too: Ruff formats it, in a process of its own.
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[4] / "tools" / "make_blocking.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_blocking", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_blocking"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


make_blocking = load()
DRAFTS: dict[Path, str] = make_blocking.drafts()


def classes(text: str) -> list[str]:
    """The classes without their formatting. Of the imports, Ruff keeps only those that are used."""
    return [ast.unparse(node) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("path", DRAFTS, ids=lambda path: path.name)
def test_the_classes_of_a_generated_file_are_current(path: Path) -> None:
    expected = classes(DRAFTS[path])
    assert expected
    assert classes(path.read_text()) == expected, f"stale; run: {make_blocking.COMMAND}"


def test_every_hand_written_function_is_called_by_a_generated_method() -> None:
    text = "".join(DRAFTS.values())
    assert [name for name in make_blocking.hand_written() if f"by_hand.{name}(" not in text] == []
