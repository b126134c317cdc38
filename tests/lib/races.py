"""No race, or the sentences of those that there are."""

from lib.streams import find_races


def assert_no_race(operations):
    """Fail with a sentence a race: which launch touches what, and what does not wait for it."""
    told = [str(race) for race in find_races(operations)]
    assert not told, "\n".join(told)
