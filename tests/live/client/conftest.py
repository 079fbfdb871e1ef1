"""The client's live tests run against Ottla and against Apache Kafka: the same calls, the same outcomes.

Tests that kill, restart or configure their broker have an Ottla of their own.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.processes.oracle import Target


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.oracle, id="apache")])
def broker(request: pytest.FixtureRequest) -> "Target":
    """Each broker in turn; the other one is not started for it."""
    target: Target = request.getfixturevalue(request.param)
    return target
