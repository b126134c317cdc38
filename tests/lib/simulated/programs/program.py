"""A program over streams, written as the statements that it consists of: real code that any device can run."""

import re
from dataclasses import dataclass, field

COLUMNS = 64
"""A row of them is 512 bytes: what the allocators give away at least."""


@dataclass(frozen=True)
class Step:
    """One statement. streams: those it runs in; the first one does the work, the others are its tensors' streams."""

    text: str
    streams: tuple[str, ...] = ()
    launches: bool = False

    @property
    def makes(self) -> str:
        """The name that it assigns to."""
        return self.text.partition(" = ")[0] if " = " in self.text else ""

    @property
    def tensors(self) -> list[str]:
        """The tensors that it names, and what it makes."""
        return re.findall(r"\b[xh]\d+\b", self.text)

    @property
    def code(self) -> str:
        """The statement as it is run."""
        return f"with use({', '.join(self.streams)}):\n    {self.text}" if self.streams else self.text


@dataclass(frozen=True)
class Program:
    """streams: by name, the number of the device of each; a device's first one is its default stream.

    hosts: pinned memory of the host, by name its rows and what is in it. names: what is left at the end.
    """

    streams: dict[str, int]
    hosts: dict[str, tuple[int, float]]
    steps: list[Step] = field(default_factory=list)

    def names(self) -> list[str]:
        """Return the tensors that are left at the end."""
        named = {name for step in self.steps for name in step.tensors}
        left = [name for name in self.hosts if name in named]
        for step in self.steps:
            if step.text.startswith("del "):
                left.remove(step.text.removeprefix("del "))
            elif step.makes.startswith("x"):
                left.append(step.makes)
        return left

    def without(self, number: int) -> "Program":
        """Return it without one step."""
        return Program(self.streams, self.hosts, [step for k, step in enumerate(self.steps) if k != number])

    def listing(self, delays: dict[int, float] | None = None) -> str:
        """Return code that runs as it stands; delays: by step, the seconds for which its stream is busy before it."""
        lines = HEADER.splitlines()
        for name, device in self.streams.items():
            first = next(other for other, its in self.streams.items() if its == device) == name
            made = f"torch.simgpu.default_stream({device})" if first else f'torch.Stream("simgpu:{device}")'
            lines.append(f"{name} = {made}")
        used = {name for step in self.steps for name in step.tensors}
        for name, (rows, value) in self.hosts.items():
            if name not in used:
                continue
            lines.append(f"{name} = torch.full(({rows}, {COLUMNS}), {value}, dtype=torch.float64).pin_memory()")
        for number, step in enumerate(self.steps):
            if delays and number in delays:
                lines += [f"with use({step.streams[0]}):", f"    sleep({delays[number]:.4f})"]
            lines += step.code.splitlines()
        lines.append("torch.simgpu.synchronize(0), torch.simgpu.synchronize(1)")
        lines.append(f"print(seen, [x[:, 0].tolist() for x in ({', '.join([*self.names(), ''])})])")
        return "\n".join(lines)


HEADER = """\
import contextlib
import torch
from lib.simulated import sleep, start

start(2)
D0 = torch.device("simgpu:0")
D1 = torch.device("simgpu:1")
seen = []

@contextlib.contextmanager
def use(*streams):
    with contextlib.ExitStack() as stack:
        for stream in reversed(streams):
            stack.enter_context(torch.simgpu.stream(stream))
        yield

def read(x):
    seen.append(x.tolist())
"""


def shrunk(program, fails):
    """Return the program without the steps that it can do without and still fail; fails(program) says whether it does.

    A program in which a name is missing does not fail: it is none.
    """
    number = len(program.steps) - 1
    while number >= 0:
        smaller = program.without(number)
        if _fails(smaller, fails):
            program = smaller
        number = min(number, len(program.steps)) - 1
    return program


def _fails(program, fails):
    try:
        return bool(fails(program))
    except (NameError, KeyError, ValueError):
        return False
