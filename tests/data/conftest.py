"""Hypothesis has no deadline here: how long a test takes says more about the machine than about the code."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
