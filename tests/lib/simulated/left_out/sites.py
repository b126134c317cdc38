"""Find every call in lib that lets something wait, and make it one that can be left out while the program runs.

`wait_stream(a, b)` becomes `wait_stream(a, b) if _kept("…") else None`: one process tries all of them, one at a time.
An event that is not recorded is an event all the same, of which nobody has to wait for.
"""

import ast
import importlib.machinery
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]

#: What lets a stream or the host wait, and what tells the allocator who else uses memory.
CALLS = {"wait", "wait_stream", "wait_event", "record", "record_event", "record_stream", "synchronize"}
CALLS |= {"synchronize_used"}

#: These are devices, and not the code that runs on them.
DEVICES = ["lib/simulated/", "lib/streams/pretend", "lib/streams/stand_in"]

#: Here a thread waits for another one, or a process: no stream is in it.
OF_THREADS = {
    ("lib/data/meta_bodies.py", "self._changed.wait(next_look - now)"),
    ("lib/data/mini_epochs.py", "self._ahead.wait()"),
    ("lib/memory.py", "self._done.wait(self.interval)"),
    ("lib/training/launch.py", "self._agent.wait(PATIENCE)"),
}


class Switches(ast.NodeTransformer):
    """Put a switch around each call; `names` are the switches of a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: list[str] = []
        self.within: list[str] = []

    def visit_within(self, node: ast.AST) -> ast.AST:
        self.within.append(node.name)  # type: ignore[attr-defined]
        self.generic_visit(node)
        self.within.pop()
        return node

    visit_FunctionDef = visit_ClassDef = visit_AsyncFunctionDef = visit_within

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        source = ast.unparse(node)
        if called not in CALLS or (self.path, source) in OF_THREADS:
            self.generic_visit(node)
            return node
        name = f"{self.path} {'.'.join(self.within)}: {source}"
        name += f" ({self.names.count(name) + 1})" if name in self.names else ""
        self.names.append(name)
        otherwise: ast.expr = ast.Constant(None)
        if called == "record_event":
            otherwise = ast.Call(ast.Name("_never_recorded", ast.Load()), [node.func.value], [])  # type: ignore[attr-defined]
        self.generic_visit(node)
        asked = ast.Call(ast.Name("_kept", ast.Load()), [ast.Constant(name)], [])
        return ast.copy_location(ast.IfExp(asked, node, otherwise), node)


def switched(path: str, source: str) -> tuple[ast.AST, list[str]]:
    """Return the source with its switches, and their names."""
    switches = Switches(path)
    tree = switches.visit(ast.parse(source))
    return ast.fix_missing_locations(tree), switches.names


def is_device(path: str) -> bool:
    return any(path.startswith(device) for device in DEVICES)


def all_sites() -> list[str]:
    """Return the names of all calls in lib that can be left out."""
    names = []
    for file in sorted((ROOT / "lib").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        if not is_device(path):
            names += switched(path, file.read_text(encoding="utf-8"))[1]
    return names


# ---- lib, imported with its switches


class Chosen:
    """Say which call is left out, and which ones a run came to."""

    def __init__(self) -> None:
        self.left_out = ""
        self.reached: set[str] = set()

    def kept(self, name: str) -> bool:
        self.reached.add(name)
        return name != self.left_out


chosen = Chosen()


def never_recorded(stream):
    """Return an event of the kind that `stream` records, for which nobody has to wait."""
    if hasattr(stream, "gpu"):  # a PretendStream
        return stream.gpu.new_stream("idle").record_event()
    import torch

    return torch.Event(stream.device)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        path = Path(self.get_filename(fullname)).relative_to(ROOT).as_posix()
        tree, _ = switched(path, self.get_data(self.path).decode())
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module):
        module._kept = chosen.kept
        module._never_recorded = never_recorded
        super().exec_module(module)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] != "lib":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return spec
        if not is_device(Path(spec.origin).relative_to(ROOT).as_posix()):
            spec.loader = _Loader(name, spec.origin)
        return spec


def install() -> None:
    """From now on, import lib with switches. Raises RuntimeError where lib has been imported without them."""
    if "lib" in sys.modules:
        raise RuntimeError("lib has been imported already, without switches")
    sys.meta_path.insert(0, _Finder)
