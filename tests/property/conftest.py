"""A busy machine is no error: hypothesis sets no time limit for an example here."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
