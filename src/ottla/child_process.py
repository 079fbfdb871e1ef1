"""The environment of a Python process that is started from this one."""

import os
from pathlib import Path

import ottla


def child_environment() -> dict[str, str]:
    """This process's environment, so that the child imports the same package: also from a checkout."""
    environment = dict(os.environ)
    root = str(Path(ottla.__file__).parent.parent)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if Path(root).name not in ("site-packages", "dist-packages") and root not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([root, *paths])
    return environment
