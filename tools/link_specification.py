"""Fills the `Tests:` lines of docs/specification.md from the `Spec: ID` citations in the tests.

.venv/bin/python tools/link_specification.py

A citation is `Spec: B3` or `Spec: B3, E10`, on one line, in the docstring of a test function, class or module. The
citation of a module counts for all its tests, that of a class for all tests of the class.
"""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "specification.md"
HEADING = re.compile(r"^### ([A-Z]\d+)$", re.MULTILINE)
CITATION = re.compile(r"\bSpec: ([A-Z]\d+(?:, ?[A-Z]\d+)*)")
ATTEMPT = re.compile(r"\b[Ss]pecs?\b[ ]*:?\s*[A-Z]\d+\b")
CONTINUATION = re.compile(r"\s*(?:[,;/&+]|and\b|or\b|to\b|-|–|…)\s*[A-Z]\d+\b")
TESTS = re.compile(r"^Tests:.*$", re.MULTILINE)
OWN_TEST = "tests/test_specification.py"  # explains citations and proves no rule


def specified_ids(page: str) -> list[str]:
    """The ids that have a section on the page, in order."""
    return HEADING.findall(page)


def cited_in(text: str) -> set[str]:
    """The ids that a docstring or comment cites."""
    return {cited for group in CITATION.findall(text) for cited in re.split(", ?", group)}


def malformed_in(text: str) -> list[str]:
    """Citations that `cited_in` would miss or cut short: no colon, or ids that are not joined by commas."""
    wrong = []
    for attempt in ATTEMPT.finditer(text):
        found = CITATION.match(text, attempt.start())
        if found is None:
            wrong.append(attempt[0])
        elif more := CONTINUATION.match(text, found.end()):
            wrong.append(found[0] + more[0])
    return wrong


def is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


@functools.cache
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
        name = path.relative_to(ROOT).as_posix()
        for cited in citations_of(path) if name != OWN_TEST else ():
            tests[cited].append(name)
    return tests


def sections(page: str) -> dict[str, str]:
    """The text of each rule, without its heading."""
    parts = HEADING.split(page)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def linked(page: str) -> str:
    """The page with every `Tests:` line filled in."""
    tests = tests_by_id()
    parts = HEADING.split(page)
    for index in range(1, len(parts), 2):
        links = [f"[{path.removeprefix('tests/')}](../{path})" for path in tests.get(parts[index], ())]
        line = "Tests: " + ", ".join(links) if links else "Tests: none"
        parts[index + 1] = TESTS.sub(line, parts[index + 1])
        parts[index] = f"### {parts[index]}"
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(linked(PAGE.read_text()))
    print(PAGE.relative_to(ROOT))
