"""Three ways to run a program: on the simulated device, on a PretendGPU, and on plain memory in an order of choice."""

import contextlib
from dataclasses import dataclass, field

import torch

from lib import simulated
from lib.streams import PretendGPU
from lib.streams.races import HOST
from tests.lib.simulated.programs.program import COLUMNS

NAN = float("nan")


@dataclass
class Numbers:
    """What a program has read, in its order, and what was in each of its tensors at the end."""

    seen: list = field(default_factory=list)
    left: dict = field(default_factory=dict)

    def __eq__(self, other):
        # by text, in which NaN equals NaN
        return repr((self.seen, self.left)) == repr((other.seen, other.left))


def values(x):
    """Return one number of each row; all of a row, where they differ."""
    return [row[0] if len(set(row)) == 1 else row for row in x]


def host_memory(rows, value):
    return torch.full((rows, COLUMNS), value, dtype=torch.float64)


# ---- the simulated device


def on_simulated(program, delays=None, *, in_turn=False):
    """Return the numbers. delays: by step, seconds for which its stream is busy before it. in_turn: one by one."""
    torch.accelerator.empty_cache()
    numbers = Numbers()
    space = {"torch": torch, "read": lambda x: numbers.seen.append(values(x.tolist()))}
    space |= {"D0": torch.device("simgpu:0"), "D1": torch.device("simgpu:1"), "use": _use}
    begun = set()
    for name, device in program.streams.items():
        space[name] = torch.Stream(f"simgpu:{device}") if device in begun else torch.simgpu.default_stream(device)
        begun.add(device)
    for name, (rows, value) in program.hosts.items():
        space[name] = host_memory(rows, value).pin_memory()
    for number, step in enumerate(program.steps):
        if delays and number in delays:
            with _use(space[step.streams[0]]):
                simulated.sleep(delays[number])
        exec(step.code, space)
        if in_turn:
            _synchronize()
    _synchronize()
    numbers.left = {name: values(space[name].tolist()) for name in program.names()}
    return numbers


@contextlib.contextmanager
def _use(*streams):
    with contextlib.ExitStack() as stack:
        for stream in reversed(streams):
            stack.enter_context(torch.simgpu.stream(stream))
        yield


def _synchronize():
    for index in range(2):
        torch.accelerator.synchronize(index)


# ---- the pretend GPU: all at once, and what was done is written down


@dataclass
class Record:
    """operations: as the PretendGPU wrote them down. begins: for each step, how many there were before it.

    launched: by number, the step, and where its tensors were: block and rows.
    """

    operations: list
    numbers: Numbers
    begins: list[int] = field(default_factory=list)
    launched: dict[int, tuple[int, dict[str, tuple[str, int]]]] = field(default_factory=dict)

    def beginning(self, launch):
        """Return the first operation that a launch's statement puts into its lane: memory is given away before."""
        lane = self.operations[launch].lane
        begin = self.begins[self.launched[launch][0]]
        return next(number for number in range(begin, launch + 1) if self.operations[number].lane == lane)


def on_pretend(program):
    """Return the record of a run."""
    gpu = PretendGPU(count=2)
    numbers = Numbers()

    @contextlib.contextmanager
    def use(*streams):
        with contextlib.ExitStack() as stack:
            for stream in reversed(streams):
                stack.enter_context(gpu.use_stream(stream))
            yield

    space = {"torch": torch, "read": lambda x: numbers.seen.append(values(x.tolist()))}
    space |= {"D0": torch.device("cuda:0"), "D1": torch.device("cuda:1"), "use": use}
    begun = set()
    for name, device in program.streams.items():
        space[name] = gpu.new_stream(name, device) if device in begun else gpu.default_streams[device]
        begun.add(device)
    for name, (rows, value) in program.hosts.items():
        space[name] = gpu.host(host_memory(rows, value), name)
    record = Record(gpu.operations, numbers)
    for number, step in enumerate(program.steps):
        record.begins.append(len(gpu.operations))
        exec(step.code, space)
        for place in range(record.begins[-1], len(gpu.operations)):
            if gpu.operations[place].kind == "launch":
                where = {name: (space[name].block.name, len(space[name])) for name in step.tensors}
                record.launched[place] = (number, where)
    numbers.left = {name: values(space[name].plain.tolist()) for name in program.names()}
    record.operations = list(gpu.operations)  # what is let go of now is no part of the program
    return record


# ---- plain memory: what comes out if one launch is late


def with_one_late(program, record, late=None):
    """Return the numbers of a run in which one launch, and all that waits for it, come as late as they can.

    The host goes on until it has to wait for something of that; then all of it is done, in the order of the record.
    Nothing is late: the sequential run.
    """
    memory = {op.label: host_memory(2, NAN) for op in record.operations if op.kind == "allocate"}
    memory |= {name: host_memory(rows, value) for name, (rows, value) in program.hosts.items()}
    numbers = Numbers()
    first_uses = _first_uses(record)
    begin = None if late is None else record.beginning(late)
    put_off = []
    lanes = set()  # that stand still, and the events in them
    events = set()

    def do(number):
        op = record.operations[number]
        if op.kind == "launch":
            for block in first_uses[number]:
                memory[block].fill_(NAN)
            _launch(program, record.launched[number], memory, numbers)

    for number, op in enumerate(record.operations):
        if op.kind == "synchronize":
            if op.event in events:
                for each in put_off:
                    do(each)
                put_off = []
                lanes.clear()
                events.clear()
        elif number == begin or op.lane in lanes or (op.kind == "wait" and op.event in events):
            put_off.append(number)
            if op.lane != HOST:
                lanes.add(op.lane)
            if op.kind == "record":
                events.add(op.event)
        else:
            events.discard(op.event) if op.kind == "record" else None
            do(number)
    for each in put_off:
        do(each)
    where = _left(program, record)
    numbers.left = {name: values(memory[block][:rows].tolist()) for name, (block, rows) in where.items()}
    return numbers


def _first_uses(record):
    """Return, by the launch that first uses them, the blocks that have been somebody else's: they are NaN again."""
    given = set()
    waiting = set()
    uses = {}
    for number, op in enumerate(record.operations):
        if op.kind == "allocate":
            if op.label in given:
                waiting.add(op.label)
            given.add(op.label)
        elif op.kind == "launch":
            blocks = {region.block for region in (*op.reads, *op.writes)}
            uses[number] = blocks & waiting
            waiting -= blocks
    return uses


def _launch(program, launched, memory, numbers):
    """Run the statement of a launch on the memory that its tensors had."""
    number, where = launched
    step = program.steps[number]
    space = {name: memory[block][:rows] for name, (block, rows) in where.items()}
    space |= {"torch": torch, "D0": "cpu", "D1": "cpu", "read": lambda x: numbers.seen.append(values(x.tolist()))}
    exec(step.text, space)
    if step.makes:
        block, rows = where[step.makes]
        memory[block][:rows] = space[step.makes]


def _left(program, record):
    """Return where the tensors are that are left at the end."""
    where = {name: (name, rows) for name, (rows, _) in program.hosts.items()}
    for _, known in record.launched.values():
        where |= known
    return {name: where[name] for name in program.names()}
