"""The memory that connections share: who holds how much, how much one may take, and who is cut."""

from ottla.net.server.byte_budget import ByteBudget


def test_the_bytes_that_a_connection_holds_are_replaced_not_added() -> None:
    budget = ByteBudget[str](1000, lambda: None)
    budget.hold("a", 300)
    budget.hold("a", 200)
    budget.hold("b", 50)
    assert (budget.used, budget.held) == (250, {"a": 200, "b": 50})
    budget.hold("a", 0)
    budget.hold("unknown", 0)
    assert (budget.used, budget.held) == (50, {"b": 50})


def test_a_share_shrinks_with_the_remaining_budget_down_to_the_minimum() -> None:
    budget = ByteBudget[str](1000, lambda: None)
    assert budget.share(4, least=10, most=10_000) == 250
    assert budget.share(4, least=10, most=100) == 100
    budget.hold("a", 900)
    assert budget.share(4, least=10, most=10_000) == 25
    budget.hold("b", 900)
    assert budget.share(4, least=10, most=10_000) == 10


def test_an_overdrawn_budget_is_reported_and_the_slowest_have_to_go() -> None:
    reports = []
    budget = ByteBudget[str](1000, lambda: reports.append(budget.used))
    speeds = {"stopped": 1.0, "slow": 50.0, "fast": 1e6}
    for name in ("fast", "stopped"):
        budget.hold(name, 450)
    assert budget.excess(speeds.__getitem__) == []
    budget.hold("slow", 450)
    assert reports == [1350]
    assert budget.excess(speeds.__getitem__) == ["stopped", "slow"]  # an eighth stays free for the next ones
    budget.hold("stopped", 0)
    budget.hold("slow", 0)
    assert budget.excess(speeds.__getitem__) == []


def test_of_equally_slow_peers_the_largest_goes_first() -> None:
    budget = ByteBudget[str](1000, lambda: None)
    for name, size in (("small", 100), ("large", 900), ("medium", 400)):
        budget.hold(name, size)
    assert budget.excess(lambda name: 0.0) == ["large"]
