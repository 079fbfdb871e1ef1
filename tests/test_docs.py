"""The documentation says what the code does."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools" / "make_docs.py")
assert spec is not None and spec.loader is not None
make_docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_docs)


@pytest.mark.parametrize("name", make_docs.PAGES)
def test_printed_pages_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == make_docs.PAGES[name](), "run: .venv/bin/python tools/make_docs.py"


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_file_named_in_the_map_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in set(re.findall(r"`((?:src|tests|tools|bench|docs)/[\w./-]+?)`", text)):
        assert (ROOT / path).exists(), f"ARCHITECTURE.md names {path}, which is not there"
