"""The messages that the broker or the client uses, one API per file: request and response with all their versions.

A table is a class; a line is a field with the versions that have it. The docstring of each file says what every
version adds. Modules are imported when first needed, through `protocol/api.py`. `unserved/` has the tables that
nothing uses yet. Pure.
"""
