"""The one map of the course: its notebooks in their order, the track of each, and what each goes on from.

README's table, the site's first page, the picture in notebook 00, each notebook's links to its neighbours and the tests
read it. A reader's hours stand here alone. A new notebook is one entry here, beside its own files; `make stamp` and
`make readme` write what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Track:
    """A way through the course, or a part in which both ways run together."""

    title: str
    about: str


START = Track("Begin here", "One training step that several processes share, and who waits for whom in it.")
DATA = Track(
    "The data track", "How training data reaches many ranks: loaders, samplers, shards, data parallel."
)
PIPELINE = Track(
    "The pipeline track",
    "How one model runs on many devices: micro-batches, clocks, checkpoints, GPipe.",
)
TOGETHER = Track("Both together", "CUDA streams, schedules without bubbles, and replicas × stages.")
TRACKS = (START, DATA, PIPELINE, TOGETHER)


#: Minutes of a reader's time that each notebook takes without its encores, exercises included.
SITTING = 120


@dataclass(frozen=True)
class Chapter:
    """One notebook: notebooks/STEM.ipynb, its solution of the same name, its room support/nNN.

    needs: the numbers of those that it goes on from as a whole, in order. short: its name on a map, two lines at most.
    encores: minutes of what may be left out, beside the two hours of the way through (SITTING).
    """

    stem: str
    title: str
    track: Track
    needs: tuple[int, ...]
    short: str
    encores: int = 0

    @property
    def number(self) -> int:
        """The number that its file begins with."""
        return int(self.label)

    @property
    def label(self) -> str:
        """Its number in two digits."""
        return self.stem[:2]

    @property
    def name(self) -> str:
        """Its number and title, as its first heading has them: "07 · Micro-batches"."""
        return f"{self.label} · {self.title}"

    @property
    def room(self) -> str:
        """The folder of its figures and checks: "n07"."""
        return f"n{self.label}"


COURSE = (
    Chapter("00_start_here", "Start here", START, (), "start\nhere"),
    Chapter("01_loading_pipeline", "The loading pipeline", DATA, (0,), "loading\npipeline", 65),
    Chapter("02_samplers", "Samplers", DATA, (1,), "samplers", 25),
    Chapter("03_distributed_sampler", "DistributedSampler", DATA, (2,), "distributed\nsampler", 40),
    Chapter("04_contiguous_shards", "Contiguous shards", DATA, (3,), "contiguous\nshards", 80),
    Chapter("05_rank_dataset", "400 million rows on a small machine", DATA, (2, 3, 4), "rank\ndataset", 55),
    Chapter("06_data_parallel", "Data parallel", DATA, (0, 3, 4, 5), "data\nparallel", 35),
    Chapter("07_micro_batches", "Micro-batches", PIPELINE, (0,), "micro-\nbatches", 60),
    Chapter("08_pipeline_clock", "Pipeline clock", PIPELINE, (7,), "pipeline\nclock", 50),
    Chapter("09_streams_tasks_workers", "Streams, tasks, workers", PIPELINE, (0, 8), "tasks,\nworkers", 30),
    Chapter(
        "10_checkpoint_recompute", "Checkpoint and recompute", PIPELINE, (0, 7, 8), "check-\npointing", 105
    ),
    Chapter("11_backward_order", "Backward order", PIPELINE, (8, 9, 10), "backward\norder", 80),
    Chapter("12_gpipe", "GPipe", PIPELINE, (7, 8, 9, 10, 11), "GPipe", 130),
    Chapter("13_cuda_streams", "CUDA streams", TOGETHER, (1, 7, 9), "CUDA\nstreams", 70),
    Chapter("14_schedules", "Schedules", TOGETHER, (8,), "schedules", 120),
    Chapter("15_scale_out", "Scale out", TOGETHER, (6, 8, 14), "scale\nout", 110),
    Chapter("16_when_it_breaks", "When it breaks", TOGETHER, (3, 4, 5, 6), "when it\nbreaks", 125),
)


def on(track: Track) -> list[Chapter]:
    """Return the notebooks of this track alone, or of this part."""
    return [chapter for chapter in COURSE if chapter.track is track]


def stops(track: Track) -> list[Chapter]:
    """Return the notebooks of a track from the start to the end, with those in which both run together."""
    return [chapter for chapter in COURSE if chapter.track in (START, track, TOGETHER)]


def columns() -> dict[int, int]:
    """Return the column of each notebook, by its number, on a map on which both tracks run side by side."""
    found: dict[int, int] = {}
    free = {DATA: 0, PIPELINE: 0}  # the next column of each track
    for chapter in COURSE:
        passed = [chapter.track] if chapter.track in free else [*free]
        column = max(free[track] for track in passed)
        found[chapter.number] = column
        for track in passed:
            free[track] = column + 1
    return found


def chapter_of(stem: str) -> Chapter:
    """Return the entry of a notebook. Raises ValueError if the map has none."""
    for chapter in COURSE:
        if chapter.stem == stem:
            return chapter
    raise ValueError(f"the map has no {stem}: give it an entry in notebooks/support/course.py")


def neighbours(stem: str) -> tuple[Chapter | None, Chapter | None]:
    """Return the notebooks before and after one, None at the ends. Raises ValueError if the map does not have it."""
    place = COURSE.index(chapter_of(stem))
    before = COURSE[place - 1] if place > 0 else None
    after = COURSE[place + 1] if place + 1 < len(COURSE) else None
    return before, after


def numbers(chapters: Sequence[Chapter], joint: str) -> str:
    """Say their numbers, neighbours joined: "00 and 07 to 12" for the joint " to "."""
    runs: list[list[Chapter]] = []
    for chapter in chapters:
        if runs and chapter.number == runs[-1][-1].number + 1:
            runs[-1].append(chapter)
        else:
            runs.append([chapter])
    said = [run[0].label if len(run) == 1 else f"{run[0].label}{joint}{run[-1].label}" for run in runs]
    return enumerated(said)


def enumerated(words: Sequence[str]) -> str:
    """Join words as a sentence does: "13, 14 and 15"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
