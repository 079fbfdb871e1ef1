"""The broker runs from a package in a zip file, as in a zipapp or in Spark's --py-files."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import ottla
from ottla.broker.dispatch import SERVED

PROGRAM = """
import ottla
from ottla.broker import broker
from ottla.broker.dispatch import SERVED, handler_for
assert ".zip" in ottla.__file__
print(len([handler_for(key) for key in SERVED]))
"""


def test_a_broker_from_a_zip_file_serves_every_api(tmp_path: Path) -> None:
    package = Path(ottla.__file__).parent
    with zipfile.ZipFile(tmp_path / "ottla.zip", "w") as archive:
        for path in package.rglob("*.py"):
            archive.write(path, path.relative_to(package.parent))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "ottla.zip"), "OTTLA_PURE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{len(SERVED)}\n", "")
