"""The documentation says what the code does."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools" / "make_docs.py")
assert spec is not None
assert spec.loader is not None
make_docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_docs)


@pytest.mark.parametrize("name", make_docs.PAGES)
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / name).read_text() == make_docs.PAGES[name](), "run: .venv/bin/python tools/make_docs.py"


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md")], ids=lambda path: path.name
)
def test_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_every_path_named_in_the_map_exists() -> None:
    """A path in ARCHITECTURE.md may be shortened to its last parts, such as `sink/driver.py` or `stores/`."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    found = list(ROOT.glob("*"))
    for folder in ("src", "tests", "tools", "bench", "docs", "examples", "deploy"):
        found += (ROOT / folder).rglob("*")
    existing = ["/" + path.relative_to(ROOT).as_posix() for path in found]
    named = {path.rstrip("/") for path in re.findall(r"`([\w.-][\w./-]*/[\w./-]*|[\w-]+\.py)`", text)}
    missing = [path for path in sorted(named) if not any(known.endswith("/" + path) for known in existing)]
    assert missing == []
