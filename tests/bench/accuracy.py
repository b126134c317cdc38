"""Does RankDataset cost accuracy? Train with many seeds, print the table.

    python -m tests.bench.accuracy --record          100 seeds, about 6 minutes on one core
    python -m tests.bench.accuracy --seeds 3         a look; records nothing

The test rows are 360, so one of them is 0.28 points: no difference below that shows in one seed.
"""

import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from support import recordings
from support.deals import DEALS, MISTAKES, REPAIRED, load_data, study
from support.digits import write_digits
from support.n16.runs import against_first
from tests.bench.common import arguments

NAME = "rank_accuracy"
SEEDS = 100
SETTINGS = {"epochs": 8, "world_size": 2, "batch_size": 64, "learning_rate": 0.005}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    if args.record and args.seeds < 20:
        parser.error(f"{args.seeds} seeds are too few to record; take 20 or more")
    deals = (*DEALS, *MISTAKES, REPAIRED)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        data = load_data(write_digits(Path(folder) / "digits"))

        def progress(deal: object, seed: int, result: object) -> None:
            if deal is deals[-1] and sys.stderr.isatty():
                print(f"seed {seed + 1} of {args.seeds}", end="\r", file=sys.stderr)

        results = study(data, range(args.seeds), deals, on_result=progress, **SETTINGS)
    seconds = time.perf_counter() - began
    tables = {what: against_first(results, what) for what in ("accuracy", "loss")}
    for what, table in tables.items():
        print(f"{what:26}  mean    sd      difference, 95 % interval")
        for row in table:
            between = f"{row.difference:+.4f}  {row.low:+.4f} … {row.high:+.4f}"
            print(f"{row.name:26}  {row.mean:.4f}  {row.deviation:.4f}  {between}{'  *' * row.settled}")
        print()
    print(f"{args.seeds} seeds, {seconds:.0f} s; *: the interval leaves out zero")
    if args.record:
        record = {
            **SETTINGS,
            "seeds": args.seeds,
            "rows": len(data.digits),
            "test_rows": len(data.test_digits),
            "seconds": seconds,
            "results": results,
            "comparison": {what: [asdict(row) for row in table] for what, table in tables.items()},
        }
        print(recordings.save_recording(NAME, record, command="python -m tests.bench.accuracy --record"))


if __name__ == "__main__":
    main()
