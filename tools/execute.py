"""Run a notebook in a fresh kernel of this environment, as every tool and test of the project does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

#: Progress bars write differently every time, and so does the order of a set of strings.
ENVIRONMENT = {"TQDM_DISABLE": "1", "PYTHONHASHSEED": "0"}

#: Where processes share the cores, as in the suite: torch's threads wait for one another asleep. By default they turn
#: round and round, on cores that the others need. As many threads share the work as before, so no bit changes.
SHARED_CORES = {"OMP_WAIT_POLICY": "passive"}

FAILURES = (CellExecutionError, CellTimeoutError, DeadKernelError)


class Client(NotebookClient):
    """nbclient without its stand-in for the Output widget.

    nbclient and JupyterLab move what a widget's callback prints or draws into the widget; nbval does not. Saved
    without the stand-in, the first frame of an interactive figure stays among the cell's outputs, for GitHub and nbval.
    """

    def on_comm_open_jupyter_widget(self, msg: dict[str, Any]) -> None:
        """Leave the widget alone."""


def execute(notebook: Any, folder: Path, cell_seconds: float = 120, client: type[Client] = Client) -> None:
    """Run all cells of `notebook` in place, with `folder` as working directory.

    Raises one of FAILURES when a cell that is not tagged `raises-exception` fails, or takes more than `cell_seconds`.
    """
    os.environ.update(ENVIRONMENT)
    client(
        notebook,
        timeout=cell_seconds,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        extra_arguments=["--log-level=40"],  # not: "Kernel is running over TCP", on this machine
        resources={"metadata": {"path": str(folder)}},
    ).execute()
