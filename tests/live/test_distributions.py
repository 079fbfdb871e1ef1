"""`python -m build`: the sdist builds and passes its tests, and the wheel has only what an installation needs."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser, Parser
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ottla
from ottla.protocol.records import _speedups

ROOT = Path(__file__).parents[2]
NAMES = [
    *("src", "tests", "docs", "bench", "examples", "tools", "deploy", ".ci", ".github"),
    *("run", "setup.py", "pyproject.toml", "constraints.txt", "MANIFEST.in", "LICENSE"),
    *(".gitignore", ".dockerignore", ".pre-commit-config.yaml"),
]
MEGABYTE = 1_000_000
URLS = {
    "Source": "https://example.org/ottla/ottla",
    "Documentation": "https://example.org/ottla/ottla/tree/main/docs",
    "Changelog": "https://example.org/ottla/ottla/blob/main/CHANGELOG.md",
    "Issues": "https://example.org/ottla/ottla/issues",
}


class Distributions(NamedTuple):
    sdist: Path
    wheel: Path
    unpacked: Path
    """The directory of the unpacked sdist."""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-5000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Both distributions, built from a copy of the project. The wheel is built from the sdist."""
    base = tmp_path_factory.mktemp("distributions")
    project, output = base / "project", base / "output"
    leftovers = shutil.ignore_patterns("__pycache__", "*.c", "*.so", "*.egg-info", "checkpoints", "*.db")
    project.mkdir()
    for name in [*NAMES, *(path.name for path in ROOT.glob("*.md"))]:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, project / name, ignore=leftovers)
        else:
            shutil.copy2(ROOT / name, project / name)
    make_checkout(project)
    # Without isolation, so that no package index is needed.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", output, project, cwd=base, OTTLA_OPTIMIZE="-O0")
    [sdist], [wheel] = output.glob("*.tar.gz"), output.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(base / "unpacked", filter="data")
    [unpacked] = (base / "unpacked").iterdir()
    return Distributions(sdist, wheel, unpacked)


def test_the_sdist_has_every_file_of_the_project_and_nothing_generated(distributions: Distributions) -> None:
    assert distributions.sdist.name == f"ottla-{ottla.__version__}.tar.gz"
    files = {path.relative_to(distributions.unpacked).as_posix() for path in distributions.unpacked.rglob("*")}
    assert set(NAMES) <= files
    assert {
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "src/ottla/py.typed",
        "src/ottla/protocol/records/_cursor.pxd",
    } <= files
    assert not [name for name in files if name.endswith((".c", ".so", ".pyc")) or name.startswith("build")]
    assert os.access(distributions.unpacked / "run", os.X_OK)
    assert distributions.sdist.stat().st_size < 3 * MEGABYTE


def urls_of(project: Path) -> dict[str, str]:
    """What setup.py finds in a project. Only its functions: the rest of the file runs Cython."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    functions: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names: dict[str, Any] = {"os": os, "subprocess": subprocess, "HeaderParser": HeaderParser}
    exec(compile(ast.Module(functions, []), "setup.py", "exec"), names)
    urls: dict[str, str] = names["project_urls"](str(project))
    return urls


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository whose remote has a password."""
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    make_checkout(tmp_path)
    return tmp_path


def make_checkout(project: Path) -> None:
    run("git", "init", "--quiet", ".", cwd=project)
    run("git", "remote", "add", "origin", "https://builder:s3cret@example.org/ottla/ottla.git", cwd=project)


def test_the_project_urls_have_no_password_of_the_git_remote(checkout: Path) -> None:
    assert urls_of(checkout) == URLS


def test_a_project_inside_another_repository_does_not_get_its_urls(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/else")
    project = checkout / "vendor" / "ottla"
    project.mkdir(parents=True)
    assert urls_of(project) == {}
    (project / ".git").mkdir()
    monkeypatch.delenv("GITHUB_REPOSITORY")
    assert urls_of(project) == {}, "git finds the outer repository"


def test_an_sdist_keeps_the_urls_that_it_was_built_with(checkout: Path) -> None:
    (checkout / "PKG-INFO").write_text("Name: ottla\nProject-URL: Source, https://example.org/first\n\nText.\n")
    assert urls_of(checkout) == {"Source": "https://example.org/first"}


def test_a_workflow_of_github_names_the_repository_if_git_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "ottla/ottla")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    assert urls_of(tmp_path) == {}
    (tmp_path / ".git").mkdir()
    assert urls_of(tmp_path) == URLS


def test_the_wheel_has_modules_only(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(f"ottla-{ottla.__version__}.dist-info/METADATA").decode())
        entry_points = archive.read(f"ottla-{ottla.__version__}.dist-info/entry_points.txt").decode()
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    assert {name.split("/")[0] for name in names} == {
        "ottla",
        "pyspark_ottla",
        "pyspark_ottla_database",
        f"ottla-{ottla.__version__}.dist-info",
    }
    assert not [name for name in names if name.endswith((".c", ".pxd", ".pyx", ".html"))]
    assert "ottla/py.typed" in names
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules, "every module, and no other"
    assert sum(size for name, size in sizes.items() if not name.endswith((".py", ".so"))) < MEGABYTE / 5
    assert sum(size for name, size in sizes.items() if not name.endswith(".so")) < 5 * MEGABYTE
    if _speedups.NATIVE:
        assert len([name for name in names if name.endswith(".so")]) == 6
    assert metadata["Version"] == ottla.__version__
    assert sorted(metadata.get_all("Project-URL", [])) == sorted(f"{name}, {url}" for name, url in URLS.items())
    assert "ottla = ottla.cli.main:main" in entry_points
    assert "ottla = ottla.pytest_plugin" in entry_points


def test_the_installed_wheel_works(distributions: Distributions, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, distributions.wheel]
    run(sys.executable, *install, cwd=tmp_path)
    path = {"PYTHONPATH": str(site)}
    assert run(site / "bin" / "ottla", "--version", cwd=tmp_path, **path) == f"ottla {ottla.__version__}\n"
    check = "import ottla; from ottla.protocol.records import _speedups; print(ottla.__file__, _speedups.NATIVE)"
    expected = f"{site / 'ottla' / '__init__.py'} {_speedups.NATIVE}\n"
    assert run(sys.executable, "-c", check, cwd=tmp_path, **path) == expected


def test_the_tests_of_the_sdist_pass(distributions: Distributions) -> None:
    """A few of them, without the compiled modules."""
    chosen = [
        "tests/test_docs.py",
        "tests/unit/test_foundation.py",
        "tests/unit/testing",
        "tests/unit/log/test_disk.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--fast", *chosen]
    output = run(*command, cwd=distributions.unpacked, PYTHONPATH=str(distributions.unpacked / "src"), OTTLA_SEED="")
    assert " passed" in output


@pytest.mark.long
def test_the_fast_lane_of_the_sdist_passes(distributions: Distributions) -> None:
    """Without the compiled modules, and outside of a git checkout."""
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", "--fast"]
    chosen = {"PYTHONPATH": str(distributions.unpacked / "src"), "OTTLA_SEED": "", "OTTLA_SEEDS": ""}
    output = run(*command, cwd=distributions.unpacked, **chosen)
    assert " passed" in output
