"""Hostile peers and a normal client beside them: shared by `./run bench --only hostile` and the live tests."""
