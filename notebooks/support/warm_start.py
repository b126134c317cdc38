"""Processes that are there in a tenth of a second: copies of a server, which has imported torch once.

    this process ── server ──┬── a copy
                             └── a copy …

A copy knows what the server has imported, and nothing of this process or of the copy before it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

#: What each copy has in its environment.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "random",  # as in any process that nobody has told otherwise
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # what gloo logs of a failure, it raises as well, and without a time of day
}


def start_warm(target: Callable[..., None], *args: Any) -> Any:
    """Return a process that has begun with `target(*args)` and ends with this one; it is new where there is no Linux.

    The first call starts the server, which imports the target's module. For other modules, a copy imports for itself
    what is missing.
    """
    # multiprocessing asks how the main module came about; that of a kernel which was forked may not say.
    vars(sys.modules["__main__"]).setdefault("__spec__", None)
    path = os.pathsep.join(filter(None, sys.path))  # the server imports before it is told our path
    context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    with mock.patch.dict(os.environ, {"PYTHONPATH": path, **ENVIRONMENT}):
        if sys.platform == "linux":
            # Not above: the Python of a page reads this file, too, and has no such module.
            from multiprocessing import forkserver

            # The second one would be imported by the first optimizer of each copy.
            context.set_forkserver_preload([target.__module__, "torch._dynamo"])
            forkserver.ensure_running()
        process = context.Process(target=target, args=args, daemon=True)
        process.start()
    return process
