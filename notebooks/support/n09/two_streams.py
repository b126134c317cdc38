"""Kernels of two tasks, launched by one thread or two into one stream or two: when each runs, in ticks."""

from __future__ import annotations

from dataclasses import replace

from lib.timeline import Trace, Work, play

KERNELS = 4  # of A, and of B


def simulate_streams(
    streams: int, threads: int = 1, *, kernel: float, launch: float, waits: bool = False
) -> Trace:
    """Return the launches (kind "launch", lanes "thread t") and kernels (kind "compute", lanes "stream s"), in ticks.

    Labels are A0, A1, … and B0, B1, …; one thread launches all of A, then all of B, two threads one sequence each. With
    one stream, kernels run in order of launch. waits: B0 starts after A1 (a wait for an event in the stream, launched
    when that event has been recorded).
    """
    # in order of launch; where two threads launch at the same moment, A comes first
    launches = sorted(
        # an event must be recorded before anything can wait for it: B0 comes after A0 and A1
        (place + 2 * (waits and t == 1), label, f"thread {t}")
        for t, names in enumerate(["AB"] if threads == 1 else ["A", "B"])
        for place, label in enumerate(f"{name}{number}" for name in names for number in range(KERNELS))
    )
    tasks = []
    for _, label, thread in launches:
        stream = 0 if streams == 1 else "AB".index(label[0])
        event = ["A1"] if waits and label == "B0" else []
        recorded = ["launch A1"] if waits and label == "B0" else []
        tasks += [
            Work(thread, f"launch {label}", launch, recorded, kind="launch"),
            Work(f"stream {stream}", label, kernel, [f"launch {label}", *event]),
        ]
    trace = play(tasks, [f"thread {t}" for t in range(threads)] + [f"stream {s}" for s in range(streams)])
    # the picture names both alike; their kind tells them apart
    return Trace((replace(span, label=span.label.removeprefix("launch ")) for span in trace), trace.lanes)
