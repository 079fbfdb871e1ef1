"""How the records' properties are searched: a slow moment of the machine is no failure."""

from hypothesis import settings

settings.register_profile("coordinator", deadline=None)
settings.load_profile("coordinator")
