"""The commands of deploy/Containerfile, executed in new environments: they build, install and start a broker."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

from tests.support.ports import fixed_port
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
LEFT_OUT = shutil.ignore_patterns(
    *(
        line.removeprefix("**/")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    )
)


def commands(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", TEXT, re.MULTILINE)


@pytest.mark.long
def test_the_commands_of_the_image_build_install_and_start_a_broker(tmp_path: Path) -> None:
    """Without a container runtime: paths of the image become paths below a directory. Needs the package index."""
    shutil.copytree(ROOT, tmp_path / "source", ignore=LEFT_OUT)
    build, install = (re.search(r"pip .*", command) for command in commands("RUN")[:2])
    assert build is not None
    assert install is not None
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", TEXT, re.MULTILINE)
    for stage, command in (("first", build[0]), ("second", install[0])):
        venv.create(tmp_path / stage, with_pip=True)
        words = command.replace("/source", f"{tmp_path}/source").replace("/wheels", f"{tmp_path}/wheels")
        environment = {**os.environ, "PATH": f"{tmp_path / stage / 'bin'}:{os.environ['PATH']}", "EXTRAS": extras}
        environment.pop("PYTHONPATH", None)
        subprocess.run(["sh", "-ec", words], check=True, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL)
    health, port = fixed_port(), fixed_port()
    (command,) = commands("CMD")[-1:]
    serve = [
        word.replace("/var/lib/ottla", f"{tmp_path}/data").replace("9308", str(health)).replace(":9092", f":{port}")
        for word in yaml.safe_load(command)
    ]
    probe = yaml.safe_load(re.findall(r"^HEALTHCHECK .*CMD +(.*)$", TEXT, re.MULTILINE)[0])
    probe = [sys.executable, *(word.replace("9308", str(health)) for word in probe[1:])]
    ottla = str(tmp_path / "second" / "bin" / "ottla")
    refused = subprocess.run([ottla, *serve], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (refused.returncode, "neither TLS nor SASL" in refused.stderr) == (2, True)
    with subprocess.Popen([ottla, *serve, "--insecure"], cwd=tmp_path, stderr=subprocess.DEVNULL) as broker:
        try:
            eventually(lambda: subprocess.run(probe, check=False, stderr=subprocess.DEVNULL).returncode == 0)
        finally:
            broker.terminate()
    assert broker.returncode == 0
