"""How a reader's three times are tried, exercise 5 of notebook 01: on a clock that only loaders and steps move."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from lib.text import plural
from support.kit.judged import Fault
from support.kit.outside import remembering
from support.kit.raised import in_case
from support.kit.values import near

STARTS = "What starts only once is in the means: the clock begins to count behind the first batch."
ONE_TOO_MANY = (
    "Divide by the batches that lie between the two looks at the clock: the first isn't one of them."
)
TOTAL = "Those are the seconds of all batches, not of one."
SWAPPED = "The order is step, loader, both."
NOT_BOTH = (
    "The third time is measured, not the longer of the other two: together they may disturb each other."
)
SUM = "The third time is measured, not the sum of the other two: a loader with workers runs beside the step."
EMPTY_STEP = "The first time is that of the step, and the step was not run."
OTHER_CLOCK = "The time is that of the `clock` that it is given."
HOLDS = "More batches are kept than 8: an epoch of a real job does not fit into memory."
WAITS = "The second time is not what the trainer waits for: iterate over the loader with nobody who trains."
MEDIAN = (
    "The median of the gaps leaves out the slow batches, and training waits for these, too: take the mean."
)
REPEATED = "The step ran on one and the same kept batch: batches differ, so take a few."
FIRST_ONLY = (
    "Each batch that you kept is the first of its loop. Without a shuffle that is always the same one: keep some of "
    "one loop."
)
NEVER_KEPT = "The first time is that of the step on kept batches, and no step of yours ran on one."
NO_BOTH = "No loop of yours trains on batches as the loader gives them: that is the third time."
SHORT = "The first batches of all workers come at once, and say little of the loader's pace: loop over a whole epoch."

STEPS_DIFFER = (
    "Some batches take a longer step, and training waits for these: due is the unrounded mean on kept ones."
)

MOST_KEPT = 8
FEWEST_KEPT = 3
LOOP_VARIABLES = 5  # that name a batch beside those that are kept
STILL_LOADING = (
    "Your step ran while workers that stay were still loading, since a loop had not come to its end: time it "
    "behind one that has."
)


class Job(NamedTuple):
    """A loader and a step, in seconds a batch; friction is what a batch takes longer when both run.

    workers: 0 if the loader and the step take turns. loads: of one batch after the other, again and again, in shares of
    `loader`, the mean; steps: the same of `step`. stay: the workers go on behind a loop that was left, until their
    places are full. about: the share by which a right time may be off, as another part of the epoch gives another.
    """

    loader: float
    step: float
    friction: float = 0.0
    workers: int = 1
    batches: int = 20
    loads: tuple[float, ...] = (1.0,)
    steps: tuple[float, ...] = (1.0,)
    about: float = 1e-6
    stay: bool = False

    def __str__(self) -> str:
        how = plural(self.workers, "worker") if self.workers else "no workers"
        if self.stay:
            how += " that stays" if self.workers == 1 else " that stay"
        disturbed = f", {self.friction:g} s more a batch when both run" if self.friction else ""
        seconds = ", ".join(f"{self.step * share:g}" for share in self.steps)
        step = f"a step that takes {seconds} s{' in turns' if len(self.steps) > 1 else ''}"
        return f"a loader with {how} that takes {self.loader:g} s a batch, {step}{disturbed}"

    @property
    def times(self) -> tuple[float, float, float]:
        """Return what is right: step, loader, both."""
        together = max(self.loader, self.step) if self.workers else self.loader + self.step
        return self.step, self.loader, together + self.friction

    def load(self, batch: int) -> float:
        """Return the seconds until the next batch is there, if it is one process that loads."""
        return self.loader * self.loads[batch % len(self.loads)]

    def ready(self) -> list[float]:
        """Return when each batch is loaded, if nobody trains: worker k of W has the batches k, k + W, …"""
        free = [0.0] * self.workers
        ready = []
        for batch in range(self.batches):
            worker = batch % self.workers
            free[worker] += self.workers * self.load(batch)
            ready.append(free[worker])
        return ready


JOBS = (
    Job(4, 1),
    Job(4, 1, 0.5),
    Job(0.0013, 0.0047, 0.0021),  # no time is a round number
    Job(3, 2, 0.25, workers=0),
    Job(4, 0.5, batches=60, loads=(0.2, 0.3, 2.5), about=0.1),  # some batches are slow
    Job(1, 0.5, workers=8, batches=120, about=0.1),  # batches come eight at a time
    Job(3, 2, workers=0, batches=60, steps=(1.5, 0.8, 0.7), about=0.1),  # some steps are slow
    Job(4, 1, 0.5, stay=True),  # behind a loop that was left, the worker goes on
)
PREFETCH = 2  # places of a worker
START = 100.0  # seconds until the first batch of an epoch, and of the first step


@dataclass(frozen=True, eq=False)
class _Made:
    """A batch."""

    world: TimedWorld
    number: int
    place: int  # in its epoch


@dataclass
class _Loop:
    """A loop over the loader: how many batches it took, on how many of them it trained at once, and if it was timed."""

    taken: int = 0
    trained: int = 0
    timed: bool = False  # whether the clock was looked at in it


class TimedWorld:
    """A clock, a loader and a step, which notes who trains on what."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.now = 1000.0
        self.looks = 0  # at the clock
        self.steps = 0
        self.made = 0
        self.loops: list[_Loop] = []
        self.fresh: dict[int, _Loop] = {}  # by number: batches that were just given, and to which loop
        self.kept: dict[int, int] = {}  # other batches on which a step ran: their places, by number
        self.kept_alive: list[weakref.ref[_Made]] = []
        self.most_kept = 0  # of them in memory at the same time
        self.ran: list[float] = []  # seconds of each step
        self.last_kept = 0  # how many steps had run behind the last on a kept batch
        self.alive: list[weakref.ref[_Made]] = []
        self.most_alive = 0
        self.loading = 0.0  # seconds for which workers that stay go on behind a loop that was left
        self.disturbed = False  # whether a step on a kept batch ran meanwhile

    def clock(self) -> float:
        """Say what time it is."""
        self.looks += 1
        for loop in self.fresh.values():
            loop.timed = True
        return self.now

    def step(self, batch: object) -> None:
        """Train on a batch."""
        if not isinstance(batch, _Made):
            raise TypeError(f"a step is given one batch, not {batch!r}")
        if batch.world is not self:
            raise ValueError("a step is given a batch of another loader")
        seconds = self.job.step * self.job.steps[batch.number % len(self.job.steps)]
        self.now += seconds + START * (self.steps == 0)
        self.steps += 1
        self.ran.append(seconds)
        loop = self.fresh.get(batch.number)
        if loop is None:
            self._keeps(batch)
            self._beside_loading()
        else:
            loop.trained += 1
        if loop is None or loop.taken > loop.trained + 1:  # kept, or given by a loop that is not trained on
            self.last_kept = len(self.ran)

    def _keeps(self, batch: _Made) -> None:
        """Note a batch that was kept, and how many of them are in memory."""
        alive = [one for one in self.kept_alive if one() not in (None, batch)]
        self.kept_alive = [*alive, weakref.ref(batch)]
        self.most_kept = max(self.most_kept, len(self.kept_alive))
        self.kept[batch.number] = batch.place

    def _beside_loading(self) -> None:
        """Let a step on a kept batch share the machine with workers that still fill their places."""
        if self.loading > 0:
            self.now += self.job.friction
            self.loading -= self.job.step + self.job.friction
            self.disturbed = True

    def __len__(self) -> int:
        return self.job.batches

    def __iter__(self) -> Iterator[_Made]:
        loop = _Loop()
        self.loops.append(loop)
        job = self.job
        self.now += START + max(0.0, self.loading)  # the next loop first takes what is still to come
        begun = self.now
        ready = job.ready() if job.workers else []
        late = 0.0  # what loading lost to training
        for number in range(job.batches):
            self.now = max(self.now, begun + ready[number] + late) if ready else self.now + job.load(number)
            given = self.now
            trained = loop.trained
            ordered = min(job.workers * PREFETCH, job.batches - number - 1)
            self.loading = ordered * job.loader if job.stay else 0.0
            yield from self._give(loop, number)
            if self.now - given >= START:  # nothing is loaded while the first step of all starts
                late += START
            if loop.trained > trained and number < job.batches - 1:
                self.now += job.friction
                late += job.friction if job.loader >= job.step else 0.0

    def _give(self, loop: _Loop, place: int) -> Iterator[_Made]:
        """Hand over a batch; it is fresh until the next one is asked for, or the loop ends."""
        batch = _Made(self, self.made, place)
        number = self.made
        self.made += 1
        loop.taken += 1
        self.alive = [*(one for one in self.alive if one() is not None), weakref.ref(batch)]
        self.most_alive = max(self.most_alive, len(self.alive))
        self.fresh[number] = loop
        try:
            yield batch
        finally:
            del self.fresh[number]


def fault_of_times(answer: Callable[..., Any]) -> str:
    """Say what is wrong with three_times, "" if nothing; others are known by what they give for all jobs."""
    return remembering(_fault_in_all_jobs)(answer)


def _fault_in_all_jobs(answer: Callable[..., Any]) -> str:
    faults = []
    for job in JOBS:
        with in_case(str(job)):
            fault = _fault(answer, TimedWorld(job))
            faults.append(f"{job}: {fault}" if fault else "")
    once_more = [fault for job, fault in zip(JOBS, faults, strict=True) if not job.stay]
    return Fault(next(filter(None, faults), ""), once_more if any(once_more) else faults)


def _fault(answer: Callable[..., Any], world: TimedWorld) -> str:
    got = answer(world, world.step, world.clock)
    if got is None:
        return "three_times returned None (is a `return` missing?)."
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        return f"three times are due, not {got!r}."
    if not world.looks:
        return f"the clock was never looked at. {OTHER_CLOCK}"
    if world.most_alive > MOST_KEPT + LOOP_VARIABLES:
        return f"{world.most_alive} batches are in memory at the same time. {HOLDS}"
    right = world.job.times
    about = world.job.about
    did = _what_it_did(world)
    step, loader, both = _less_an_edge(got, world)
    steps_are_right = _is_a_mean(step, world)
    if steps_are_right and near(loader, right[1], about) and near(both, right[2], about):
        return did
    if world.disturbed and not steps_are_right:
        did = STILL_LOADING
    elif not (did or steps_are_right) and len(world.job.steps) > 1:
        did = STEPS_DIFFER
    names = ("step", "loader", "both")
    told = ", ".join(f"{name} {_text(mine)}" for name, mine in zip(names, got, strict=True))
    due = ", ".join(f"{name} {_text(value)}" for name, value in zip(names, right, strict=True))
    roughly = ", give or take a tenth" if about > 0.01 else ""
    return f"you give {told}; due are {due} seconds a batch{roughly}. {did}".strip()


def _is_a_mean(seconds: Any, world: TimedWorld) -> bool:
    """Say whether it is a mean of steps that ran one after the other, whichever an answer counts: two at least."""
    if near(seconds, world.job.step, 1e-6):
        return True
    if len(world.job.steps) == 1:
        return False
    ran = world.ran[: world.last_kept]
    ends = (len(ran) - 1, len(ran))  # who looks at the clock before each step leaves out the last
    return any(
        near(seconds, sum(ran[begin:end]) / (end - begin), 1e-6) for end in ends for begin in range(end - 1)
    )


def _less_an_edge(got: Any, world: TimedWorld) -> list[Any]:
    """Return the times, the third without what an interval may have that ends otherwise than it begins.

    Whoever looks at the clock when the first batch is there, and again behind the last step, has up to one step more,
    and the friction of one batch less.
    """
    times = list(got)
    trained = max((loop.trained for loop in world.loops), default=0)
    if not trained or not isinstance(times[2], float):
        return times
    due = world.job.times[2]
    intervals = max(1, trained - 2)  # at least: some begin behind the first batch, some behind the second
    most = due + world.job.step / intervals
    least = due - world.job.friction / intervals
    if least - 1e-9 <= times[2] <= most + 1e-9:
        times[2] = due
    return times


def _what_it_did(world: TimedWorld) -> str:
    """Say what is wrong with what was looped over, whatever came of it; "" if nothing."""
    if not world.steps:
        return ""
    if not any(loop.trained > 1 for loop in world.loops):
        return NO_BOTH
    if not world.kept:
        return NEVER_KEPT
    if len(world.kept) == 1:
        return REPEATED
    if set(world.kept.values()) == {0}:
        return FIRST_ONLY
    if len(world.kept) < FEWEST_KEPT:
        return f"The step ran on {len(world.kept)} kept batches. Keep a few more: batches differ."
    if world.most_kept > MOST_KEPT:
        return f"The step ran on {world.most_kept} kept batches. {HOLDS}"
    for kind, loops in {
        "without training": [loop for loop in world.loops if not loop.trained],
        "with training": [loop for loop in world.loops if loop.trained],
    }.items():
        timed = [loop for loop in loops if loop.timed]
        most = max((loop.taken for loop in timed or loops), default=0)
        if most < world.job.batches - 1:
            of_all = f"{plural(most, 'batch', 'batches')} of {world.job.batches}"
            return f"No {'timed ' if timed else ''}loop {kind} took more than {of_all}. {SHORT}"
    return ""


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
