"""Worlds, wire helpers, foreign clients and processes that the tests share."""
