"""How the log's properties are searched: a slow moment of the machine is no failure."""

from hypothesis import settings

settings.register_profile("log", deadline=None)
settings.load_profile("log")
