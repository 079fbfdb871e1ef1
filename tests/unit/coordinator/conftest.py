"""Every test here ends with a check that a fresh load of each coordinator's log gives the state of the live one."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support import fresh_load

# A slow machine must not fail a property.
settings.register_profile("coordinator", deadline=None)
settings.load_profile("coordinator")


@pytest.fixture(autouse=True)
def fresh_loads() -> Iterator[None]:
    with fresh_load.watched():
        yield
