"""Every test here ends with a check that a fresh load of each broker's logs gives the state of the live ones."""

from collections.abc import Iterator

import pytest

from tests.support import fresh_load


@pytest.fixture(autouse=True)
def fresh_loads() -> Iterator[None]:
    with fresh_load.watched():
        yield
