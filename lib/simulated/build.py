"""Build the simulated device with the C++ compiler of this machine: once for each torch and each state of the source.

The library lies in a cache folder, $XDG_CACHE_HOME or ~/.cache, and is found there the next time. Of processes that
need it at once one builds and the others wait for it. Where the folder's file system has no locks each builds, which
does no harm: each writes a file of its own and then gives it its name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

SOURCES = Path(__file__).with_name("csrc")
FLAGS = ("-O1", "-std=c++20", "-fPIC", "-shared", "-w")
MINUTES = 10
"""After this time a compiler is taken to hang."""
MEGABYTES = 30
"""That it writes at most, the library and what it puts down on the way."""
NO_ROOM = "No space left on device"

INSTALL = (
    "Debian, Ubuntu, Colab: apt-get install g++; conda: conda install -c conda-forge cxx-compiler; "
    "macOS: xcode-select --install. Or name one: CXX=/path/to/compiler. Nothing else of lib needs it."
)


class BuildError(RuntimeError):
    """The simulated device could not be built: there is no compiler, or it failed."""


def find_compiler() -> str:
    """Return the path of $CXX, else of g++, clang++ or c++; raises BuildError with the way out where there is none."""
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "clang++", "c++"]:
        found = shutil.which(name)
        if found:
            return found
    looked = f"CXX={wanted}, which is not there" if wanted else "g++, clang++ and c++"
    raise BuildError(f"the simulated device needs a C++ compiler; looked for {looked}. {INSTALL}")


def cache_folder() -> Path:
    """Return the folder in which built libraries are kept; nothing is made yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "inside-distributed-training"


def library_path() -> Path:
    """Return where the library of this torch and this source lies, or will lie."""
    digest = hashlib.sha256()
    for part in (torch.__version__, sys.platform, os.uname().machine, *FLAGS):
        digest.update(part.encode() + b"\0")
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return cache_folder() / f"simulated-torch{torch.__version__}-{digest.hexdigest()[:16]}.so"


def command(compiler: str, target: Path) -> list[str]:
    """Return the call of the compiler."""
    # It warns, where torch was built for CUDA and there is none, of what nobody needs here.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # Imported here: it takes a while, and it is only needed to build.
    from torch.utils.cpp_extension import include_paths, library_paths

    includes = [f"-I{path}" for path in include_paths()]
    folders = [option for path in library_paths() for option in (f"-L{path}", f"-Wl,-rpath,{path}")]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    source = str(SOURCES / "simulated.cpp")
    return [compiler, *FLAGS, abi, *includes, source, "-o", str(target), *folders, "-lc10", "-ltorch_cpu"]


def build_library() -> Path:
    """Return the library, which is built if it is not there yet: 20 to 60 seconds, once; a line says so.

    While another process builds it, this one waits. Raises BuildError where there is no compiler, where it fails, where
    the cache folder can't be written to, and on Windows.
    """
    if sys.platform == "win32":
        raise BuildError("the simulated device is for Linux and macOS; on Windows it can be built in WSL")
    library = library_path()
    if library.exists():
        return library
    compiler = find_compiler()
    print(f"Building the simulated GPU with {Path(compiler).name} (20 to 60 s, once) …", flush=True)
    start = time.monotonic()
    # A name of its own, so that nobody loads what is half-written; the last step is a rename.
    unfinished = library.with_suffix(f".{os.getpid()}.tmp")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(library.parent):
            if not library.exists():  # else another process has built it meanwhile
                unfinished.touch()  # where nothing can be written it is said now, not behind half a minute of compiling
                _run(command(compiler, unfinished), library.parent)
                os.replace(unfinished, library)
    except OSError as error:
        way_out = "set XDG_CACHE_HOME to a folder that can be written to"
        raise BuildError(f"the simulated GPU could not be stored in {library.parent} ({error}): {way_out}") from error
    finally:
        if unfinished.exists():
            unfinished.unlink()
    print(f"… built in {time.monotonic() - start:.0f} s.", flush=True)
    return library


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for this folder; the system lets go of who was killed in one."""
    import fcntl  # Windows has none

    place = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _run(call: list[str], folder: Path) -> None:
    """Call the compiler; raises BuildError with its first errors, or when it does not end. folder: it writes there."""
    english = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=60 * MINUTES, env=english)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{call[0]} did not end within {MINUTES} minutes") from error
    if done.returncode != 0 and NO_ROOM in done.stderr:
        raise BuildError(
            f"there is no room to build the simulated GPU: {call[0]} needs {MEGABYTES} MB in {folder} and in "
            f"{tempfile.gettempdir()}, and one of them is full. Make room, or name others by XDG_CACHE_HOME and TMPDIR"
        )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        said = "\n".join(lines[:8]) or f"it ended with {done.returncode} and said nothing"
        raise BuildError(
            f"{call[0]} could not build the simulated GPU for torch {torch.__version__}:\n{said}\n"
            f"It needs C++20 (g++ 11, clang++ 14 or newer). Another compiler: CXX=/path/to/compiler. "
            "Nothing else of lib needs it."
        )
