"""What benchmarks share: the repository, one process a measurement, its peak of memory, and arguments."""

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of the benchmark."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_beside_a_peer(doc: str | None, measure: Callable[[int], None], rounds: int, given: Any = ()) -> None:
    """Measure in one intra-op thread, beside torchgpipe if it is there: `--peer` says where, `--rounds` how often."""
    parser = arguments(doc)
    parser.add_argument("--peer", help="a folder in which torchgpipe is installed")
    parser.add_argument("--rounds", type=int, default=rounds)
    chosen = parser.parse_args(given)
    if chosen.peer:
        sys.path.insert(0, chosen.peer)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        measure(chosen.rounds)
    finally:
        torch.set_num_threads(before)


def peer() -> dict[str, Any]:
    """Return {"torchgpipe": the module}, or nothing if it can't be imported."""
    try:
        import torchgpipe
    except ImportError as error:
        print(f"(without torchgpipe: {error}; see --peer)")
        return {}
    return {"torchgpipe": torchgpipe}


def linears(layers: int, width: int) -> nn.Sequential:
    """Return so many Linear(width, width), always with the same weights."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=generator)
    return model


def in_own_process(module: str, *arguments: object) -> Any:
    """Run `python -m module arguments`; return the JSON that it prints, or raise RuntimeError with its last line."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def start_of_peak() -> int:
    """Forget the peak so far and return the bytes that the process holds now."""
    gc.collect()
    with contextlib.suppress(OSError):  # Linux only: the high-water mark starts anew
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_bytes()


def peak_bytes() -> int:
    """Return the most bytes of memory that this process ever held."""
    status = Path("/proc/self/status")
    if status.exists():  # not ru_maxrss, which on Linux also remembers the process that started this one
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Run `work` once; seconds, extra peak bytes, and nbytes of what it returns if that has any."""
    before = start_of_peak()
    began = time.perf_counter()
    kept = work()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "bytes": peak_bytes() - before, "payload": float(getattr(kept, "nbytes", 0))}
