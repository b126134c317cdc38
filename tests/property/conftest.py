"""A busy machine is no error: hypothesis sets no time limit here; `make prove` tries ten times as many examples."""

from hypothesis import settings

from tests.sizes import size

settings.register_profile("unhurried", deadline=None, max_examples=size(suite=100, prove=1_000))
settings.load_profile("unhurried")
