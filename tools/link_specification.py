"""Fills the `Tests:` lines of docs/specification.md from the `Spec: ID` citations in the tests.

.venv/bin/python tools/link_specification.py

A citation is `Spec: B3` or `Spec: B3, E10` in the docstring of a test function, test class or test module. A module's
citation counts for all tests of the module, a class's for all tests of the class.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "specification.md"
HEADING = re.compile(r"^### ([A-FR]\d+)$", re.MULTILINE)
CITATION = re.compile(r"\bSpec: ([A-FR]\d+(?:, ?[A-FR]\d+)*)")


def specified_ids(page: str) -> list[str]:
    """The ids that have a section on the page, in order."""
    return HEADING.findall(page)


def cited_in(text: str) -> set[str]:
    """The ids that a docstring or comment cites."""
    return {cited for group in CITATION.findall(text) for cited in re.split(", ?", group)}


def is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


def citations_of(path: Path) -> set[str]:
    """The ids that the tests of this file prove."""
    module = ast.parse(path.read_text())
    found: set[str] = set()
    for node, ids in _tests_in(module, cited_in(ast.get_docstring(module) or "")):
        found.update(ids | cited_in(ast.get_docstring(node) or ""))
    return found


def _tests_in(
    parent: ast.Module | ast.ClassDef, inherited: set[str]
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, set[str]]]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            yield from _tests_in(node, inherited | cited_in(ast.get_docstring(node) or ""))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_test(node):
            yield node, inherited


def tests_by_id() -> dict[str, list[str]]:
    """For each cited id, the test files that prove it, relative to the project and sorted."""
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for cited in citations_of(path):
            tests[cited].append(path.relative_to(ROOT).as_posix())
    return tests


def linked(page: str) -> str:
    """The page with every `Tests:` line filled in."""
    tests = tests_by_id()
    parts = HEADING.split(page)
    for index in range(1, len(parts), 2):
        links = [f"[{path.removeprefix('tests/')}](../{path})" for path in tests.get(parts[index], ())]
        line = "Tests: " + ", ".join(links) if links else "Tests: none"
        parts[index + 1] = re.sub(r"^Tests:.*$", line, parts[index + 1], count=1, flags=re.MULTILINE)
        parts[index] = f"### {parts[index]}"
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(linked(PAGE.read_text()))
    print(PAGE.relative_to(ROOT))
