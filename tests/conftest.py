"""The same examples in every run: a failure can be looked at, and a change is to blame for it."""

from hypothesis import settings

settings.register_profile("fedpals", derandomize=True)
settings.load_profile("fedpals")
