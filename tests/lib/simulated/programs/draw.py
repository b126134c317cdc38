"""Draw programs: short ones over a few streams, in which most of what has to wait waits."""

from random import Random

from tests.lib.simulated.programs.program import Program, Step

#: Memory of the host that is written to. What is only read has other names, and each arrival a number of its own:
#: memory that is given away again must not hold what comes.
FETCHED = ("h0", "h1", "h2")


class Draft:
    """A program that is being drawn, and what is known of its tensors.

    care: with which probability a launch is let wait for what it has to wait for.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.care = random.choice([1.0, 0.9, 0.7, 0.5])
        devices = random.choice([1, 1, 2])
        streams = {"s0": 0, "s1": 0}
        if devices == 2:
            streams |= {"t0": 1}
        if random.random() < 0.6:
            streams |= {"s2": 0} if devices == 1 else {"t1": 1}
        self.program = Program(streams, dict.fromkeys(FETCHED, (1, 5.0)))
        self.device: dict[str, int] = {}
        self.rows = dict.fromkeys(FETCHED, 1)
        self.uses: dict[str, dict[str, str]] = {name: {} for name in FETCHED}  # by stream: "r", or "w" if it wrote
        self.home: dict[str, str] = {}  # the stream from whose pool a tensor's memory is
        self.number = 0
        self.events = 0
        self.sums: dict[str, str] = {}  # by stream, a tensor of its own that never goes

    def drawn(self, launches: int) -> Program:
        """Return the program, once it has so many launches."""
        kinds = [self.arrive, self.compute, self.compute, self.change, self.change, self.change, self.overwrite]
        kinds += [self.fetch, self.look, self.drop, self.drop, self.drop, self.meet]
        if len(set(self.program.streams.values())) > 1:
            kinds += [self.move, self.move]
        while sum(step.launches for step in self.program.steps) < launches:
            self.random.choice(kinds)()
        return self.program

    # ---- what a step is made of

    def put(self, text):
        self.program.steps.append(Step(text))

    def launch(self, text, *streams):
        self.program.steps.append(Step(text, streams, launches=True))

    def name(self):
        self.number += 1
        return f"x{self.number}"

    def host(self, rows):
        """Return memory of the host with a number in it that no other has."""
        name = f"h{len(self.program.hosts)}"
        self.program.hosts[name] = (rows, 2.0 * len(self.program.hosts) + 3.0)
        return name

    def stream(self, device=None):
        found = [name for name, its in self.program.streams.items() if device is None or its == device]
        return self.random.choice(found)

    def tensor(self, device=None):
        """Return one that is there, if possible of a device."""
        found = [name for name, its in self.device.items() if device is None or its == device]
        return self.random.choice(found) if found else None

    def factor(self):
        return self.random.randint(2, 9)

    def wait(self, stream, reads=(), writes=()):
        """Let a stream, or the host, wait for those that have used these tensors; mostly."""
        needed = set()
        for name in (*reads, *writes):
            for other, how in self.uses[name].items():
                if other != stream and (how == "w" or name in writes):
                    needed.add(other)
        for other in sorted(needed):
            if self.random.random() >= self.care:
                continue
            if other == "host":
                continue  # it has done what it does before it launches anything
            how = self.random.choice(["stream", "event", "event", "host"])
            if stream == "host" or how == "host":
                self.put(f"{other}.synchronize()")
            elif how == "stream":
                self.put(f"{stream}.wait_stream({other})")
            else:
                self.put(f"{stream}.wait_event({self.recorded(other)})")

    def recorded(self, stream):
        self.events += 1
        self.put(f"e{self.events} = {stream}.record_event()")
        return f"e{self.events}"

    def used(self, stream, reads=(), writes=()):
        for name in reads:
            self.uses[name].setdefault(stream, "r")
        for name in writes:
            self.uses[name][stream] = "w"

    def made(self, name, stream, rows):
        self.device[name] = self.program.streams[stream]
        self.rows[name] = rows
        self.home[name] = stream
        self.uses[name] = {stream: "w"}

    # ---- the steps

    def arrive(self):
        self.arrive_in(self.stream(), self.random.choice([1, 1, 1, 2]))

    def arrive_in(self, stream, rows):
        name = self.name()
        host = self.host(rows)
        device = self.program.streams[stream]
        self.launch(f"{name} = {host}.to(D{device}, non_blocking=True)", stream)
        self.made(name, stream, rows)

    def compute(self):
        stream = self.stream()
        one = self.tensor(self.program.streams[stream])
        other = self.tensor(self.program.streams[stream])
        if one is None or other is None:
            return
        self.wait(stream, [one, other])
        name = self.name()
        self.launch(f"{name} = torch.add({one}[:1], {other}[:1], alpha={self.factor()})", stream)
        self.used(stream, [one, other])
        self.made(name, stream, 1)

    def change(self):
        stream = self.stream()
        target = self.tensor(self.program.streams[stream])
        source = self.tensor(self.program.streams[stream])
        if target is None or source is None:
            return
        if target == source:
            self.wait(stream, [], [target])
            how = self.random.choice(["mul_", "add_"])
            self.launch(f"{target}.{how}({self.factor()})", stream)
            self.used(stream, [], [target])
            return
        self.wait(stream, [source], [target])
        self.launch(f"{target}.add_({source}[:1], alpha={self.factor()})", stream)
        self.used(stream, [source], [target])

    def overwrite(self):
        stream = self.stream()
        target = self.tensor(self.program.streams[stream])
        if target is None:
            return
        self.wait(stream, [], [target])
        part = self.random.choice(["", f"[{self.rows[target] - 1}:]"])
        self.launch(f"{target}{part}.fill_({self.factor()})", stream)
        self.used(stream, [], [target])

    def move(self):
        source = self.tensor()
        if source is None:
            return
        here = self.stream(self.device[source])
        there = self.stream(1 - self.device[source])
        self.wait(here, [source])
        target = self.tensor(1 - self.device[source])
        if target is not None and self.random.random() < 0.5:
            self.wait(there, [], [target])
            self.launch(f"{target}.copy_({source}[:1], non_blocking=True)", here, there)
            self.used(there, [], [target])
        else:
            target = self.name()
            device = self.program.streams[there]
            self.launch(f"{target} = {source}[:1].to(D{device}, non_blocking=True)", here, there)
            self.made(target, there, 1)
        self.used(here, [source])

    def fetch(self):
        stream = self.stream()
        source = self.tensor(self.program.streams[stream])
        if source is None:
            return
        host = self.random.choice(FETCHED)
        self.wait(stream, [source], [host])
        self.launch(f"{host}.copy_({source}[:1], non_blocking=True)", stream)
        self.used(stream, [source], [host])

    def look(self):
        if self.random.random() < 0.5:
            host = self.random.choice(FETCHED)
            self.wait("host", [host])
            self.launch(f"read({host})")
            self.used("host", [host])
            return
        stream = self.stream()
        source = self.tensor(self.program.streams[stream])
        if source is None:
            return
        self.wait(stream, [source])
        self.launch(f"read({source})", stream)
        self.used(stream, [source])

    def drop(self):
        # Memory that record_stream was told of is given away at a time that hangs on the device: such tensors have a
        # size of their own, two rows, so that nobody's numbers depend on which block somebody gets.
        name = self.tensor()
        if name is None:
            return
        self.add_to_sum(name)
        users = sorted(set(self.uses[name]) - {self.home[name]})
        if self.rows[name] == 2:
            for user in users:
                self.put(f"{name}.record_stream({user})")
        else:
            self.wait(self.home[name], [], [name])
        self.put(f"del {name}")
        rows = self.rows[name]
        home = self.home[name]
        for known in (self.device, self.rows, self.uses, self.home):
            del known[name]
        if self.random.random() < 0.5:  # who comes now gets its memory
            self.arrive_in(home, rows)

    def add_to_sum(self, name):
        """Let what was in a tensor be seen at the end."""
        stream = self.stream(self.device[name])
        self.wait(stream, [name])
        if stream not in self.sums:
            self.sums[stream] = self.name()
            device = self.program.streams[stream]
            self.launch(f"{self.sums[stream]} = {self.host(1)}.to(D{device}, non_blocking=True)", stream)
        self.launch(f"{self.sums[stream]}.add_({name}[{self.rows[name] - 1}:], alpha={self.factor()})", stream)
        self.used(stream, [name])

    def meet(self):
        one = self.stream()
        other = self.stream()
        if one != other:
            self.put(f"{one}.wait_stream({other})")


def draw(seed: int, launches: int = 12) -> Program:
    """Return a program; always the same one for a seed."""
    return Draft(Random(seed)).drawn(launches)
