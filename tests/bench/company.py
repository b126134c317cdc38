"""What does a forgotten set_epoch cost, by the size of the group that batch normalisation sees? Print the table.

    python -m tests.bench.company --record          20 seeds, about a minute on one core
    python -m tests.bench.company --seeds 3         a look; records nothing

The same orders throughout: what changes is who is normalised with whom, and whether that ever changes.
"""

import tempfile
import time
from pathlib import Path
from statistics import fmean

from support import recordings
from support.n03.company import record
from support.n03.runs import digits
from support.n03.solved import new_company, new_steps
from tests.bench.common import arguments

NAME = "company"
SEEDS = 20
EPOCHS = 30


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
        results = record(*data, {"new steps": new_steps, "new company": new_company}, args.seeds, EPOCHS)
    for size, ways in results.items():
        for way, losses in ways.items():
            worse = sum(a > b for a, b in zip(losses, ways["told"], strict=True))
            print(f"groups of {size:4}  {way:12}  {fmean(losses):.3f}  higher than told in {worse} of {args.seeds}")
    seconds = time.perf_counter() - began
    print(f"{args.seeds} seeds, {seconds:.0f} s")
    if args.record:
        rounded = {
            size: {way: [round(loss, 4) for loss in losses] for way, losses in ways.items()}
            for size, ways in results.items()
        }
        data = {"seeds": args.seeds, "epochs": EPOCHS, "seconds": round(seconds), "results": rounded}
        print(recordings.save_recording(NAME, data, command="python -m tests.bench.company --record"))


if __name__ == "__main__":
    main()
