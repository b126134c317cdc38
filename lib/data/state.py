"""What a saved state must fit before it is loaded: the same for samplers and for datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def check_state(
    owner: object, state: object, identity: Mapping[str, Any], more: Iterable[str]
) -> Mapping[str, Any]:
    """Return `state` if it is a complete state of something that was made as `owner` was.

    identity: what must be equal, by name. more: the names that must be there besides. Raises TypeError for what is no
    mapping, ValueError for one that is not complete or has another identity, naming both values.
    """
    kind = type(owner).__name__
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a mapping made by state_dict(), not {type(state).__name__}")
    missing = [name for name in (*identity, *more) if name not in state]
    if missing:
        raise ValueError(f"not a state of a {kind}: {', '.join(missing)} missing")
    for name, value in identity.items():
        if state[name] != value:
            raise ValueError(
                f"the state was taken with {name}={state[name]!r}, this {kind} has {name}={value!r}; "
                "make it with the same data and arguments to continue its epoch"
            )
    return state
