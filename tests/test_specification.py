"""docs/specification.md and the tests agree: every cited rule exists, and every rule has a test."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
UPDATE = "run: .venv/bin/python tools/link_specification.py"
RULES = {"A": 9, "B": 11, "C": 5, "D": 4, "E": 11, "F": 5, "R": 9}
FOLDERS = ("src", "tests", "docs", "bench", "examples", "tools", "deploy", ".github", ".ci")
SUFFIXES = {"", ".py", ".pxd", ".md", ".txt", ".toml", ".yaml", ".yml", ".java", ".xml", ".conf", ".env", ".service"}

# Documents and numbers that no reader of the repository can look up.
FOREIGN = re.compile(
    r"\bMISSION\b|\b(?!(?:README|ARCHITECTURE|CONTRIBUTING|CHANGELOG|SECURITY)\.md)[A-Z]{4,}(?:\.md\b|\s*§|\s+[A-FR]\d)"
    r"|(?i:\bhandbook\b)|\b(?i:seeds?|documents?)[ /]00\d|\b(?i:issues?|tickets?) #?\d+\b"
    r"|(?<![\w&/\"'#])#\d+(?![\w-])"
)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("link_specification", ROOT / "tools" / "link_specification.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every text file of the repository except this one, by name."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    wanted = [path for path in paths if path.suffix in SUFFIXES and path != Path(__file__) and path.is_file()]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in wanted}


def test_the_page_has_every_rule_in_order(tool: ModuleType) -> None:
    expected = [f"{letter}{number}" for letter, last in RULES.items() for number in range(1, last + 1)]
    assert tool.specified_ids(tool.PAGE.read_text()) == expected


def test_every_cited_rule_exists(tool: ModuleType, texts: dict[str, str]) -> None:
    known = set(tool.specified_ids(tool.PAGE.read_text()))
    unknown = {name: sorted(ids - known) for name, text in texts.items() if (ids := tool.cited_in(text)) - known}
    assert not unknown


def test_every_citation_can_be_read(tool: ModuleType, texts: dict[str, str]) -> None:
    sources = {name: text for name, text in texts.items() if name.endswith(".py")}
    malformed = {name: wrong for name, text in sources.items() if (wrong := tool.malformed_in(text))}
    assert not malformed, "write `Spec: B3` or `Spec: B3, E10`, on one line"


@pytest.mark.parametrize(
    "text", ["Spec B3", "Spec:B3", "spec: B3", "Specs: B3", "Spec: B3 and B4", "Spec: B3; B4", "Spec: B3,\n    B4"]
)
def test_a_citation_in_another_form_is_found(tool: ModuleType, text: str) -> None:
    assert tool.malformed_in(f"A claim. {text}.")
    assert not tool.malformed_in("A claim. Spec: B3, E10. B4 is another rule.")


def test_every_citation_in_a_test_file_belongs_to_a_test(tool: ModuleType) -> None:
    """In a comment or in the docstring of a helper it would prove nothing."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    lost = {path.name: ids for path in files if (ids := tool.cited_in(path.read_text()) - tool.citations_of(path))}
    assert not lost, "cite the rule in the docstring of the test, its class or its module"


def test_every_rule_has_a_test(tool: ModuleType) -> None:
    proved = tool.tests_by_id()
    assert [rule for rule in tool.specified_ids(tool.PAGE.read_text()) if not proved.get(rule)] == []


def test_the_links_to_the_tests_are_current(tool: ModuleType) -> None:
    page = tool.PAGE.read_text()
    without = [rule for rule, text in tool.sections(page).items() if len(tool.TESTS.findall(text)) != 1]
    assert without == [], "every rule has one line that starts with `Tests:`"
    assert page == tool.linked(page), UPDATE


def test_examples_on_the_page_are_in_a_test_of_their_rule(tool: ModuleType) -> None:
    """Stored bytes, and errors that are quoted as a whole sentence."""
    tests = tool.tests_by_id()
    missing = {}
    for rule, text in tool.sections(tool.PAGE.read_text()).items():
        examples = re.findall(r"`([0-9a-f]{10,}|[A-Z][^`]+\.)`", " ".join(text.split()))
        asserted = [string for name in tests[rule] for string in strings_in(ROOT / name)] if examples else []
        if lost := [example for example in examples if not any(example in string for string in asserted)]:
            missing[rule] = lost
    assert not missing


def strings_in(path: Path) -> list[str]:
    constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


def test_no_file_cites_a_document_that_is_not_in_the_repository(texts: dict[str, str]) -> None:
    """A rule is cited by its id on the specification page; nothing else outside the repository is."""
    assert {name: found[0] for name, text in texts.items() if (found := FOREIGN.search(text))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "PLAN B3",
        "see PLAN.md",
        "PLAN §4",
        "seed 003",
        "seeds/000",
        "issue 12",
        "Fixes #12",
        "(#7)",
    ],
)
def test_a_foreign_citation_is_found(text: str) -> None:
    assert FOREIGN.search(text)
    assert not FOREIGN.search("docs/protocol.md, seed 3, two issues, a ticket, [a](#b-groups), &#39; and '#123456'")
