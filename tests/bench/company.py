"""What does a forgotten set_epoch cost, by rate and by what is normalised together? Print the table.

    python -m tests.bench.company --record          20 seeds, 10 minutes of one core; all cores work on it
    python -m tests.bench.company --seeds 3         a look; records nothing

The same orders throughout: what changes is who is normalised with whom, whether that ever changes, and the rate.
"""

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

from support import recordings
from support.n03.company import RATES, SIZES, measure_company
from support.n03.runs import digits
from support.n03.solved import new_company, new_steps
from tests.bench.common import arguments

NAME = "company"
SEEDS = 20
EPOCHS = 30
CONTROLS = {"new steps": new_steps, "new company": new_company}


def one(setting: tuple[float, str], *, data, seeds: int):
    """Measure at one rate and size."""
    rate, size = setting
    return measure_company(*data, CONTROLS, seeds=seeds, size=size, rate=rate, epochs=EPOCHS)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    if args.record and args.seeds < SEEDS:
        parser.error(f"{args.seeds} seeds are too few to record; take {SEEDS} or more")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        data = [digits(split, Path(folder) / "digits") for split in ("train", "test")]
    settings = [(rate, size) for rate in RATES for size in ("none", *map(str, SIZES))]
    # four ways take longest: they begin first
    settings.sort(key=lambda setting: setting[1] not in ("none", "4"))
    apart = get_context("spawn")  # a forked process may wait for threads of torch that it does not have
    with ProcessPoolExecutor(os.cpu_count(), mp_context=apart) as pool:
        found = dict(zip(settings, pool.map(partial(one, data=data, seeds=args.seeds), settings), strict=True))
    kept = {"results": {}, "wrong": {}, "exact": {}}
    for (rate, size), measured in sorted(found.items(), key=lambda item: item[0][0]):
        for what, ways in measured.items():
            kept[what].setdefault(f"{rate:g}", {})[size] = rounded(ways)
        told = measured["results"]["told"]
        for way, losses in measured["results"].items():
            worse = sum(a > b for a, b in zip(losses, told, strict=True))
            means = f"loss {fmean(losses):.3f}, wrong {fmean(measured['wrong'][way]):.1%}"
            print(f"rate {rate:4} groups of {size:4} {way:12} {means}, higher than told in {worse} of {args.seeds}")
    seconds = time.perf_counter() - began
    print(f"{args.seeds} seeds, {seconds:.0f} s")
    if args.record:
        data = {"seeds": args.seeds, "epochs": EPOCHS, "seconds": round(seconds), **kept}
        print(recordings.save_recording(NAME, data, command="python -m tests.bench.company --record"))


def rounded(ways):
    return {way: [round(loss, 4) for loss in losses] for way, losses in ways.items()}


if __name__ == "__main__":
    main()
