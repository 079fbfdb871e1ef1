"""docs/specification.md and the tests agree: every cited rule exists, and every rule has a test."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
UPDATE = "run: .venv/bin/python tools/link_specification.py"
RULES = {"A": 9, "B": 11, "C": 5, "D": 4, "E": 11, "F": 5, "R": 9}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("link_specification", ROOT / "tools" / "link_specification.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cited_by_file(tool: ModuleType) -> dict[str, set[str]]:
    folders = ("src", "tests", "bench", "examples", "tools")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if path != Path(__file__)]
    return {path.relative_to(ROOT).as_posix(): tool.cited_in(path.read_text()) for path in files}


def test_the_page_has_every_rule_in_order(tool: ModuleType) -> None:
    expected = [f"{letter}{number}" for letter, last in RULES.items() for number in range(1, last + 1)]
    assert tool.specified_ids(tool.PAGE.read_text()) == expected


def test_every_cited_rule_exists(tool: ModuleType) -> None:
    known = set(tool.specified_ids(tool.PAGE.read_text()))
    unknown = {path: sorted(ids - known) for path, ids in cited_by_file(tool).items() if ids - known}
    assert not unknown


def test_every_rule_has_a_test(tool: ModuleType) -> None:
    proved = tool.tests_by_id()
    assert [rule for rule in tool.specified_ids(tool.PAGE.read_text()) if not proved.get(rule)] == []


def test_the_links_to_the_tests_are_current(tool: ModuleType) -> None:
    page = tool.PAGE.read_text()
    assert page == tool.linked(page), UPDATE


def test_no_file_cites_a_document_that_is_not_in_the_repository() -> None:
    """Rules are cited as `Spec: B3`; the names below are documents that no reader has."""
    foreign = re.compile(r"\b(?:MISSION|PROTOCOL|CLUSTER|TESTING|DESIGN|STYLE)(?:\.md|\b\s*(?:§|[A-FR]\d))|\bseed 00\d")
    files = [path for pattern in ("src/**/*.py", "tests/**/*.py", "docs/*.md", "*.md") for path in ROOT.glob(pattern)]
    wrong = [
        path.relative_to(ROOT).as_posix()
        for path in files
        if path != Path(__file__) and foreign.search(path.read_text())
    ]
    assert wrong == []
