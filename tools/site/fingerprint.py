"""Whether two figures are the same picture, found before either is laid out and written, which takes longest.

A figure is what it is made of: pickled, the same parts are the same bytes. What cannot be pickled is never the same.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import pickle
import types
from typing import Any

from matplotlib.figure import Figure
from matplotlib.transforms import TransformNode

#: What a transform has worked out already, and who asked for it, by address.
PASSING = {"_parents", "_invalid", "_inverted", "_affine"}


def fingerprint(figure: Figure) -> str:
    """Return a hash of all that a figure is made of, "" where it can't be told: equal ones are the same picture."""
    parts = io.BytesIO()
    try:
        _Parts(parts, protocol=5).dump(figure)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError):
        return ""
    return hashlib.blake2b(parts.getbuffer(), digest_size=16).hexdigest()


class _Parts(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, TransformNode):
            state = {name: value for name, value in vars(obj).items() if name not in PASSING}
            return object.__new__, (type(obj),), state
        if isinstance(obj, types.FunctionType) and "<" in obj.__qualname__:  # no module has it: it is what it does
            inside = tuple(cell.cell_contents for cell in obj.__closure__ or ())
            return tuple, ((marshal.dumps(obj.__code__), obj.__defaults__, obj.__kwdefaults__, inside),)
        return NotImplemented
