"""How the tests of lib say that something is refused."""

import pytest


def refuses(error, says, call, *arguments, **named):
    """Fail unless call(*arguments, **named) raises this error with these words (a pattern; "" for any)."""
    with pytest.raises(error, match=says or None):
        call(*arguments, **named)
