"""Make or update `.venv`: the packages of requirements.txt at the versions of constraints.txt, and this project itself.

    python3 tools/environment.py           what the notebooks need
    python3 tools/environment.py --test    and what the tests need

Runs before anything is installed, so it uses the standard library only. Nothing is done when nothing has changed: a
stamp in `.venv` remembers the files that it was made from. uv is used where it is installed, pip otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "idt-stamp.json"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

#: The files behind each set of packages, in the order of installing.
REQUIREMENTS = {"lab": ["requirements.txt"], "test": ["requirements.txt", "requirements-test.txt"]}


def environment_hash(kind: str) -> str:
    """Return a hash of every file that decides what belongs in the environment of this kind ("lab" or "test")."""
    digest = hashlib.sha256()
    for name in [*REQUIREMENTS[kind], "constraints.txt", "pyproject.toml", "tools/nbconvert_config.py"]:
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    return digest.hexdigest()


def read_stamp() -> dict[str, str]:
    """Return the fingerprints that the environment was made from; empty where there is none."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def python_works() -> bool:
    """Tell whether the environment's Python starts and is a version that this project runs on."""
    check = "import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] < (3, 14))"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", check], capture_output=True).returncode == 0


def find_links() -> dict[str, str]:
    """Return pip's find-links as uv's variable: uv does not read pip's settings, and local wheels save gigabytes."""
    if "UV_FIND_LINKS" in os.environ:
        return {}
    links = os.environ.get("PIP_FIND_LINKS", "")
    if not links:
        command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        links = subprocess.run(command, capture_output=True, text=True).stdout
    return {"UV_FIND_LINKS": ",".join(links.split())} if links.strip() else {}


def create(uv: str | None) -> None:
    """Make an empty `.venv`, in place of one that does not work."""
    if VENV.exists():
        shutil.rmtree(VENV)
    if uv and subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, VENV]).returncode == 0:
        return
    if subprocess.run([sys.executable, "-m", "venv", VENV]).returncode != 0:
        raise SystemExit(
            f"{sys.executable} cannot make a virtual environment. Debian, Ubuntu: apt-get install python3-venv"
        )


def install(uv: str | None, *arguments: str) -> None:
    """Install with uv, or with pip where there is no uv or uv fails; raises SystemExit with the way out."""
    if uv:
        command = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), *arguments]
        if subprocess.run(command, cwd=ROOT, env={**os.environ, **find_links()}).returncode == 0:
            return
        print("uv could not; trying pip.", flush=True)
    if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        subprocess.run([PYTHON, "-m", "ensurepip", "--upgrade"], check=True, capture_output=True)  # uv leaves pip out
    command = [str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise SystemExit(
            "Installing failed (see above). Network gone? Run the same command again: what has arrived is kept.\n"
            "A package without a build for this Python or system? Try without the pins:\n"
            f"    {PYTHON} -m pip install -r requirements.txt && {PYTHON} -m pip install --no-deps -e ."
        )


def set_up_jupyter() -> None:
    """Switch off JupyterLab's questions about news and updates, and keep alt texts in exports: in this environment."""
    settings = VENV / "etc/jupyter"
    settings.mkdir(parents=True, exist_ok=True)
    for program in ("nbconvert", "server"):
        shutil.copy(Path(__file__).with_name("nbconvert_config.py"), settings / f"jupyter_{program}_config.py")
    page_config = settings / "labconfig/page_config.json"
    page_config.parent.mkdir(parents=True, exist_ok=True)
    page_config.write_text(json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}))


def main() -> None:
    """Bring `.venv` up to date for the notebooks, or with --test for the tests as well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--test", action="store_const", const="test", default="lab", dest="kind")
    kind = parser.parse_args().kind
    wanted = environment_hash(kind)
    works = python_works()
    if works and read_stamp().get(kind) == wanted:
        return
    uv = shutil.which("uv")
    what = "Updating" if works else "Making"
    usually = "1 minute" if uv else "3 minutes"
    print(f"{what} .venv with {'uv' if uv else 'pip'}: usually {usually}, and 1.3 GB of disk.")
    print("(Where pip chooses a torch for CUDA, as on Linux: 7 GB, and as long as that takes to arrive.)")
    sys.stdout.flush()
    start = time.monotonic()
    if not works:
        create(uv)
    # The old stamp goes first: an installation that is broken off must not look finished.
    STAMP.unlink(missing_ok=True)
    files = [argument for name in REQUIREMENTS[kind] for argument in ("-r", name)]
    install(uv, *files, "-c", "constraints.txt")
    install(uv, "--no-deps", "-e", ".")
    set_up_jupyter()
    kinds = ["lab", "test"] if kind == "test" else ["lab"]
    STAMP.write_text(json.dumps({name: environment_hash(name) for name in kinds}))
    print(f".venv is ready ({time.monotonic() - start:.0f} s).", flush=True)


if __name__ == "__main__":
    main()
