"""What the requirements ask for, what constraints.txt pins, and a mark for what only holds of those versions."""

from functools import cache
from importlib.metadata import distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.project import ROOT

FILES = ["requirements.txt", "requirements-test.txt"]


def requirements(name: str) -> dict[str, tuple[Requirement, str]]:
    """Return each requirement of a file, and the reason beside it."""
    found = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        code, _, comment = line.partition("#")
        if code.strip():
            requirement = Requirement(code.strip())
            found[canonicalize_name(requirement.name)] = (requirement, comment.strip())
    return found


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [code.split("==") for line in lines if (code := line.partition("#")[0].strip())]
    return {canonicalize_name(name): version for name, version in pairs}


@cache
def installed() -> dict[str, str]:
    """Return the version of every package here; torch 2.13.0+cpu is 2.13.0."""
    return {canonicalize_name(one.name): one.version.partition("+")[0] for one in distributions() if one.name}


def differing() -> list[str]:
    """Name the required packages whose version here is not the pinned one."""
    return [name for file in FILES for name in requirements(file) if installed().get(name) != pins()[name]]


with_the_pins = pytest.mark.skipif(bool(differing()), reason="here are other versions than in constraints.txt")
