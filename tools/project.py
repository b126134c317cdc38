"""What the project is called, where it lives, and which notebooks it has: read from pyproject.toml and the folders."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from support.course import COURSE

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Address:
    """The repository's web address, the ref (tag or branch) that Colab fetches, and the version of what lies there."""

    repository: str
    ref: str
    version: str

    @property
    def owner_and_name(self) -> str:
        """The last two parts of the address: "owner/name"."""
        return "/".join(self.repository.rstrip("/").split("/")[-2:])

    def badge(self, notebook: Path, root: Path = ROOT) -> str:
        """Return the address that opens `notebook` in Colab."""
        path = notebook.resolve().relative_to(root.resolve()).as_posix()
        return f"https://colab.research.google.com/github/{self.owner_and_name}/blob/{self.ref}/{path}"

    @property
    def binder(self) -> str:
        """The address at which mybinder opens the first notebook, on a machine that it makes of environment.yml."""
        first = f"lab/tree/notebooks/{COURSE[0].stem}.ipynb"
        return f"https://mybinder.org/v2/gh/{self.owner_and_name}/{self.ref}?urlpath={first}"

    @property
    def site(self) -> str:
        """The address at which .github/workflows/pages.yml publishes the site."""
        owner, name = self.owner_and_name.split("/")
        return f"https://{owner.lower()}.github.io/{name}/"


def address(root: Path = ROOT) -> Address:
    """Read the address from pyproject.toml, the one place that has it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    about = project["project"]
    return Address(about["urls"]["Repository"], project["tool"]["idt"]["ref"], about["version"])


def notebooks(root: Path = ROOT) -> list[Path]:
    """Return the course's notebooks in order, then the solutions."""
    return chapters(root) + sorted(root.glob("notebooks/solutions/*.ipynb"))


def chapters(root: Path = ROOT) -> list[Path]:
    """Return the course's notebooks in order, without the solutions."""
    return sorted(root.glob("notebooks/*.ipynb"))


def find(names: list[str], root: Path = ROOT) -> list[Path]:
    """Return the notebooks meant by numbers ("03" or "3": the chapter and its solution), stems, paths, or "all".

    Raises SystemExit that lists what there is when a name fits none.
    """
    there = notebooks(root)
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if name == "all":
            fits = there
        elif name.isdigit():
            fits = [notebook for notebook in there if notebook.name.startswith(f"{int(name):02d}_")]
        elif path.suffix == ".ipynb" and path.exists():
            fits = [path.resolve()]
        else:
            fits = [notebook for notebook in there if notebook.stem == path.stem]
        if not fits and name != "all":
            known = " ".join(notebook.relative_to(root / "notebooks").with_suffix("").as_posix() for notebook in there)
            raise SystemExit(
                f"No notebook is called {name!r}. Name a number, a stem, a path, or all; there are: {known}"
            )
        found += fits
    return list(dict.fromkeys(found))


def starts_a_device(notebook: Path) -> bool:
    """Say whether a cell of the notebook starts a device, which changes torch for as long as its kernel lives."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return any("start_device(" in "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
