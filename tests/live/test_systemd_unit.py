"""deploy/systemd/ottla.service as systemd itself reads it."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "ottla.service"

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine."""
    unit = tmp_path / "ottla.service"
    unit.write_text(UNIT.read_text().replace("/opt/ottla/bin/ottla", "/bin/true"))
    return unit


def test_the_unit_is_valid(unit: Path) -> None:
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_systemd_rates_the_exposure_of_the_unit_as_low(unit: Path) -> None:
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", unit], capture_output=True, text=True
    )
    assert rated.returncode == 0, rated.stdout[-300:]
