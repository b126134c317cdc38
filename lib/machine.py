"""The machine card: what a number was measured on, in three lines. No host name and no path is in it."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lib._units import format_bytes


@dataclass(frozen=True)
class MachineCard:
    """Describe a machine. `memory` is in bytes; what the machine does not tell is None."""

    cpu: str
    cores_usable: int
    cores_logical: int
    cores_physical: int | None
    memory: int | None
    gpu: str | None
    gpu_memory: int | None
    driver: str | None
    cuda: str | None
    torch: str
    threads: int
    python: str
    system: str

    @property
    def device(self) -> str:
        """The name of the GPU, or of the CPU where there is none."""
        return self.gpu or self.cpu

    def __str__(self) -> str:
        cores = f"{self.cores_usable} of {self.cores_logical} logical cores usable"
        physical = f"{self.cores_physical} physical" if self.cores_physical else None
        memory = format_bytes(self.memory) if self.memory else None
        gpu = [self.gpu or "none"]
        if self.gpu:
            gpu.append(format_bytes(self.gpu_memory or 0))
            gpu += [f"driver {self.driver}"] * bool(self.driver) + [f"CUDA {self.cuda}"] * bool(self.cuda)
        threads = f"{self.threads} thread{'s' * (self.threads != 1)} an operator"
        return "\n".join(
            f"{name:<6} {', '.join(part for part in parts if part)}"
            for name, parts in (
                ("cpu", (self.cpu, cores, physical, memory)),
                ("gpu", gpu),
                ("torch", (self.torch, threads, f"Python {self.python}", self.system)),
            )
        )


def machine_card() -> MachineCard:
    """Return the card of this machine. CUDA is not initialised where torch sees no GPU."""
    import torch

    gpu = driver = gpu_memory = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        gpu, gpu_memory, driver = properties.name, properties.total_memory, _driver()
    return MachineCard(
        cpu=_cpu_name(),
        cores_usable=_usable_cores(),
        cores_logical=os.cpu_count() or 1,
        cores_physical=_physical_cores(),
        memory=_total_memory(),
        gpu=gpu,
        gpu_memory=gpu_memory,
        driver=driver,
        cuda=torch.version.cuda if gpu else None,
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def _cpu_name() -> str:
    with contextlib.suppress(OSError):  # Linux; on Arm it has no such line
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def _usable_cores() -> int:
    """Return how many cores this process may use: a container or taskset may allow fewer than there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(
        OSError, ValueError
    ):  # "200000 100000" is a quota of two cores, "max 100000" is none
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _physical_cores() -> int | None:
    with contextlib.suppress(ImportError):
        import psutil

        count: int | None = psutil.cpu_count(logical=False)
        return count
    return None


def _total_memory() -> int | None:
    with contextlib.suppress(ImportError):
        import psutil

        return int(psutil.virtual_memory().total)
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, which torch does not know."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        shown = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return shown.stdout.split("\n")[0].strip() or None
    return None
