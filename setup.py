"""Builds the optional compiled modules. Everything else about the package is in pyproject.toml."""

import os
import subprocess
from typing import Any

from setuptools import Extension, setup

# No compiler is not an error: ottla.protocol.records._speedups falls back to pure Python.
# OTTLA_OPTIMIZE=-O0 makes a quick build, for the test of the distributions.
OPTIONS: dict[str, Any] = {"extra_compile_args": [os.environ.get("OTTLA_OPTIMIZE", "-O3")], "optional": True}
GENERATED = "build/cython"


def project_urls() -> dict[str, str]:
    """Links to the repository that this is built from: GitHub's in a workflow there, else the git remote `origin`."""
    repository = os.environ.get("GITHUB_REPOSITORY")
    if repository:
        home = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
    else:
        command = ["git", "remote", "get-url", "origin"]
        try:
            home = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return {}
        if not home.startswith("https://"):
            return {}
        # Without the user name and password that a remote may have: the URLs are published.
        host, _, path = home.removeprefix("https://").removesuffix(".git").partition("/")
        home = f"https://{host.rpartition('@')[2]}/{path}"
    return {
        "Source": home,
        "Documentation": f"{home}/tree/main/docs",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


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

setup(ext_modules=extensions, project_urls=project_urls())
