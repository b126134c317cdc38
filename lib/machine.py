"""The machine that was measured: its card, and the cores that this process may use."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lib.memory import import_psutil
from lib.text import format_bytes, plural


@dataclass(frozen=True)
class MachineCard:
    """Describe a machine. `memory` is in bytes; what the machine does not tell is None."""

    cpu: str
    cores_usable: int
    cores_logical: int
    cores_physical: int | None
    memory: int | None
    torch: str
    threads: int
    python: str
    system: str
    gpu: str | None = None
    gpu_memory: int | None = None
    driver: str | None = None
    cuda: str | None = None

    @property
    def device(self) -> str:
        """The name of the GPU, or of the CPU where there is none."""
        return self.gpu or self.cpu

    def __str__(self) -> str:
        cores = f"{self.cores_usable} of {self.cores_logical} logical cores usable"
        cpu = [self.cpu, cores]
        if self.cores_physical:
            cpu.append(f"{self.cores_physical} physical")
        if self.memory:
            cpu.append(format_bytes(self.memory))
        gpu = ["none"]
        if self.gpu:
            gpu = [self.gpu, format_bytes(self.gpu_memory or 0)]
            if self.driver:
                gpu.append(f"driver {self.driver}")
            if self.cuda:
                gpu.append(f"CUDA {self.cuda}")
        software = [self.torch, f"{plural(self.threads, 'thread')} an operator", f"Python {self.python}", self.system]
        rows = {"cpu": cpu, "gpu": gpu, "torch": software}
        return "\n".join(f"{name:<6} {', '.join(said)}" for name, said in rows.items())


def machine_card() -> MachineCard:
    """Return the card of this machine. CUDA is not initialised where torch sees no GPU."""
    physical, total = _physical_cores_and_memory()
    gpu: dict[str, Any] = {}
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        gpu = dict(gpu=found.name, gpu_memory=found.total_memory, driver=_driver(), cuda=torch.version.cuda)
    return MachineCard(
        cpu=_cpu_name(),
        cores_usable=usable_cores(),
        cores_logical=os.cpu_count() or 1,
        cores_physical=physical,
        memory=total,
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        **gpu,
    )


def _cpu_name() -> str:
    with contextlib.suppress(OSError):  # Linux; on Arm it has no such line
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def usable_cores() -> int:
    """Return how many cores this process may use: a container or taskset may allow fewer than there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # "200000 100000" is a quota of two cores, "max 100000" is none
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _physical_cores_and_memory() -> tuple[int | None, int | None]:
    with contextlib.suppress(ImportError):
        psutil = import_psutil("the machine card")
        return psutil.cpu_count(logical=False), psutil.virtual_memory().total
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None, None


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, which torch does not know."""
    with contextlib.suppress(subprocess.SubprocessError, OSError):  # also where there is no such program
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        shown = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return shown.stdout.split("\n")[0].strip() or None
    return None
