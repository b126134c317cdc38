"""Two launchers on this machine, as on two machines: they meet at a port, and their ranks are one job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from lib.training.launch import LOOPBACK, REPOSITORY


def two_machines(script: str, *arguments: object, ranks: int = 2, timeout: float = 180.0) -> None:
    """Run a script with two torchruns of `ranks` ranks each, started as on machines of their own, until both are done.

    Raises RuntimeError with what was said if one of them fails, TimeoutError; no process stays.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # lib.training.loopback is torchrun that ends with this process, should the notebook's kernel go
    command = [sys.executable, "-m", "lib.training.loopback", "--nnodes", "2", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", str(port)]
    command += ["--local-addr", "127.0.0.1", "--monitor-interval", "0.1", script, *map(str, arguments)]
    folders = [str(REPOSITORY), str(REPOSITORY / "notebooks"), os.environ.get("PYTHONPATH")]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "OMP_NUM_THREADS": "1"}
    ours |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile("w+") as said:
        how: Any = {"env": os.environ | ours, "stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
        launchers = [subprocess.Popen(command, start_new_session=True, **how) for _ in range(2)]
        end = time.monotonic() + timeout
        try:
            while None in (codes := [one.poll() for one in launchers]) and not any(codes):
                if time.monotonic() > end:
                    raise TimeoutError(f"two launchers were not done after {timeout:g} s, so they were ended")
                time.sleep(0.05)
        finally:
            for one in launchers:
                one.terminate()  # a launcher that is asked to end ends its ranks first
                one.wait()
        said.seek(0)
        if any(codes):
            raise RuntimeError(f"a launcher failed, exit codes {codes}:\n{said.read()[:6000]}")
