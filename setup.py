"""Builds the optional compiled modules. Everything else about the package is in pyproject.toml."""

import os
import subprocess
from email.parser import HeaderParser
from typing import Any

from setuptools import Extension, setup

# No compiler is not an error: ottla.protocol.records._speedups falls back to pure Python.
# OTTLA_OPTIMIZE=-O0 makes a quick build, for the test of the distributions.
OPTIONS: dict[str, Any] = {"extra_compile_args": [os.environ.get("OTTLA_OPTIMIZE", "-O3")], "optional": True}
GENERATED = "build/cython"


def project_urls(project: str) -> dict[str, str]:
    """Links to the repository of this project. A build of an sdist takes them from the sdist."""
    try:
        with open(os.path.join(project, "PKG-INFO"), encoding="utf-8") as file:
            described = HeaderParser().parse(file)
    except FileNotFoundError:
        home = repository_url(project)
        pages = {"Documentation": "/tree/main/docs", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}
        return {"Source": home, **{name: home + path for name, path in pages.items()}} if home else {}
    links = (link.partition(", ") for link in described.get_all("Project-URL", []))
    return {name: url for name, _, url in links}


def repository_url(project: str) -> str:
    """The git remote `origin` of this checkout, else GitHub's address in a workflow there. Empty outside of a checkout:
    the project may lie inside another repository."""
    if not os.path.exists(os.path.join(project, ".git")):
        return ""
    try:
        top, origin = (
            subprocess.run(["git", *words], cwd=project, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--show-toplevel"), ("remote", "get-url", "origin"))
        )
    except (OSError, subprocess.CalledProcessError):
        top = origin = ""
    if origin.startswith("https://") and os.path.realpath(top) == os.path.realpath(project):
        # Without the user name and password that a remote may have: the URLs are published.
        host, _, path = origin.removeprefix("https://").removesuffix(".git").partition("/")
        return f"https://{host.rpartition('@')[2]}/{path}"
    repository = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}" if repository else ""


try:
    from Cython.Build import cythonize
except ImportError:  # no Cython: pure Python is used
    extensions = []
else:
    extensions = cythonize(
        [
            Extension(
                f"ottla.protocol.{name}",
                [f"src/ottla/protocol/{name.replace('.', '/')}.py"],
                depends=["src/ottla/protocol/records/_cursor.pxd", "src/ottla/protocol/arrow/_arrow_buffers.pxd"],
                **OPTIONS,
            )
            for name in ("records._kernels", "arrow._arrow_buffers", "arrow._arrow_decode", "arrow._arrow_encode")
        ],
        language_level=3,
        build_dir=GENERATED,
    )
    # One source, two modules: these files are also the pure-Python fallback, so their annotations stay plain Python.
    extensions += cythonize(
        [
            Extension(
                f"ottla.{folder}._{name}",
                [f"src/ottla/{folder.replace('.', '/')}/{name}.py"],
                depends=[f"src/ottla/{folder.replace('.', '/')}/_{name}.pxd"],
                **OPTIONS,
            )
            for folder, name in (("client.producer", "hot_path"), ("protocol.records", "single_batch"))
        ],
        language_level=3,
        build_dir=GENERATED,
        compiler_directives={"annotation_typing": False, "auto_pickle": False, "cdivision": True},
    )

setup(ext_modules=extensions, project_urls=project_urls(os.path.dirname(os.path.abspath(__file__))))
