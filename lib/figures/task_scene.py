"""What the picture of a pipeline's runtime shows: where every task is after each of the seven steps, and in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MICRO_BATCHES = 4
STEPS = {
    "spawn": "spawn_workers(devices)",
    "queues": "in_queue, out_queue = SimpleQueue(), SimpleQueue()",
    "hand back": "yield in_queues, out_queues",
    "put": "in_queues[j].put(task)",
    "run": "batch = in_queue.get().compute()",
    "result": "out_queue.put((True, (task, batch)))",
    "take": "ok, (task, batch) = out_queues[j].get();  task.finalize(batch)",
}
FAILED = {"result": "out_queue.put((False, exc_info))", "take": "ok, exc_info = out_queues[j].get();  raise"}

NAMES = tuple(STEPS)
Pair = tuple[int, int]


@dataclass
class Scene:
    """Say where every task is: by partition j, the micro-batch i that lies there."""

    partitions: int
    queues: bool = True
    held: bool = True
    queued: dict[int, int] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    failed: int | None = None
    done: set[Pair] = field(default_factory=set)
    now: set[Pair] = field(default_factory=set)


def pairs_at(clock: int, micro_batches: int, partitions: int) -> list[Pair]:
    """Return the pairs (micro-batch, partition) of one clock, ordered by partition."""
    return [(clock - j, j) for j in range(partitions) if 0 <= clock - j < micro_batches]


def scene_at(step: int, clock: int, partitions: int, fails: bool) -> Scene:
    """Return where everything is after `step` (1 to 7) of a clock; the first three steps come before all clocks."""
    if step <= 3:
        return Scene(partitions, queues=step > 1, held=step > 2)
    pairs = pairs_at(clock, MICRO_BATCHES, partitions)
    done = {pair for k in range(clock) for pair in pairs_at(k, MICRO_BATCHES, partitions)}
    scene = Scene(partitions, done=done, now=set(pairs), failed=pairs[0][1] if fails and step >= 5 else None)
    place = {4: scene.queued, 5: scene.running, 6: scene.answered, 7: scene.taken}[step]
    place.update({j: i for i, j in pairs})
    return scene


def _listed(words: Iterable[str]) -> str:
    *most, final = words
    return f"{', '.join(most)} and {final}" if most else final


def said(name: str, scene: Scene, clock: int) -> str:
    """Say what a step of a clock does."""
    n = scene.partitions
    start = "one thread starts and waits" if n == 1 else f"{n} threads start, one a device, and wait"
    if name in NAMES[:3]:
        ready = "each worker gets a queue for tasks and one for answers"
        return (start, ready, "the scheduler holds both lists of queues")[NAMES.index(name)]
    pairs = sorted(scene.now, key=lambda pair: pair[1])
    tasks = _listed(f"F{i}" for i, _ in pairs)
    good = [f"F{i}" for i, j in pairs if j != scene.failed]
    if scene.failed is None:
        one = {"put": "waits in its queue", "run": "runs", "result": "is answered", "take": "is back"}[name]
        many = {
            "put": "wait in their queues",
            "run": "run at the same time",
            "result": "are answered",
            "take": "are back",
        }
        return f"in clock {clock}, {tasks} {one if len(pairs) == 1 else many[name]}"
    bad, rest = f"F{pairs[0][0]}", f", {_listed(good)} as usual" if good else ""
    verb = {
        "run": "raises in its worker",
        "result": "is answered by its error",
        "take": "raises here, in your thread",
    }
    return f"in clock {clock}, {bad} {verb[name]}{rest}"


def words(scene: Scene) -> str:
    """Say where everything is."""
    parts = [f"{scene.partitions} worker{'s' * (scene.partitions > 1)}"]
    for where, place in (
        ("in_queues", scene.queued),
        ("workers", scene.running),
        ("out_queues", scene.answered),
        ("scheduler", scene.taken),
    ):
        if place:
            parts.append(
                f"in the {where}: " + ", ".join(f"micro-batch {i} of partition {j}" for j, i in place.items())
            )
    parts.append(f"{len(scene.done)} tasks done before")
    if scene.failed is not None:
        parts.append(f"partition {scene.failed} failed")
    return "; ".join(parts) + "."
