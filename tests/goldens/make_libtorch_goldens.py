"""Write libtorch.json: what the real C++ samplers of the installed torch yield.

Needs g++ and a torch wheel (its headers and libraries); the tests need neither, they read the JSON.
Run from the repository: python tests/goldens/make_libtorch_goldens.py
"""

import datetime
import hashlib
import json
import pathlib
import subprocess
import tempfile
from typing import Any

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent
LITERAL = 17  # deals of at most this many indices are stored as they are, longer ones as a digest

SMALL_SIZES = [*range(13), 16, 17, 31, 64, 100, 255, 256, 257, 1000]
LARGE_DEALS = [  # size, replicas, duplicates, epoch: around the change of algorithm at 65535, and large
    *((n, 1, 1, epoch) for n in (65533, 65534, 65535, 65536, 65537) for epoch in (0, 1, 9)),
    *((n, w, dup, 2) for n in (65534, 65535, 65536) for w in (2, 3, 8) for dup in (0, 1)),
    *((n, 1, 1, 4) for n in (4095, 4096, 30000, 46341, 60000, 100003, 262144)),
    *((1_000_000, 1, 1, epoch) for epoch in (0, 1, 77)),
    *((1_000_000, 3, dup, 5) for dup in (0, 1)),
    (999_983, 4, 1, 6),
    (3_000_000, 1, 1, 1),
]
LARGE_EPOCHS = [2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 5, 2**63 - 1]

WALKS = [
    "random 10 1 0 1 i n3 i n4 i n3 i n1 i e",
    "random 10 3 2 1 i n3 i n3 i n3 r i n9",
    "random 10 3 1 0 i n2 n2 n2 i r n5 i",
    "random 10 1 0 1 E1 e n4 e r e n10 r n10",  # set_epoch acts at the next reset
    "random 10 1 0 1 R20 i n25 R5 n9 n9 r n9",
    "random 10 3 1 1 R20 i n25 i R4 i n9",
    "random 10 1 0 1 n3 s i e n9 n9",
    "random 100 4 3 1 E6 r n7 s i e n30 n1 s n1 r n4",
    "random 10 1 0 1 E3 n3 s i e n9",  # saved before the reset: the loaded sampler is in epoch 3
    "random 0 1 0 1 i n1 r n1",
    "random 3 4 0 0 i n1 r i n1",
    "sequential 10 3 2 1 i n3 i n3 i n3 r i n9",
    "sequential 10 3 2 1 n1 n1 n1 n1 n1",
    "sequential 10 3 1 0 i n2 n2 n2 i r n5 i",
    "sequential 10 1 0 1 E1 e n4 r n4 R20 i n25 R5 n9 n9 r n9",
    "sequential 10 3 1 1 R20 i n25 i R4 i n9",
    "sequential 10 3 1 1 n2 s i e n9 n9",
    "sequential 10 3 1 1 E5 n2 s e n9",  # the sequential sampler does not save its epoch
    "sequential 0 1 0 1 i n1 r n1",
    "sequential 3 4 0 0 i n1 r i n1",
    "sequential 2 5 4 1 i n1 i n1",
]


def deals() -> list[str]:
    asked = []
    for n in SMALL_SIZES:
        for w in (1, 2, 3, 4, 5, 8):
            for dup in (0, 1):
                asked.append(f"deal sequential {n} {w} {dup} 0")
                asked += [f"deal random {n} {w} {dup} {epoch}" for epoch in (0, 1, 7)]
    asked += [f"deal random 10 {w} 1 {epoch}" for w in (1, 3) for epoch in LARGE_EPOCHS]
    asked += [f"deal random {n} {w} {dup} {epoch}" for n, w, dup, epoch in LARGE_DEALS]
    asked += [f"deal sequential {n} {w} {dup} 0" for n in (65536, 1_000_000) for w in (1, 3, 7) for dup in (0, 1)]
    return asked


def store(answer: str) -> Any:
    """The ranks of a deal as lists; a long deal as lengths, first 8 indices and the SHA-256 of little-endian int64."""
    ranks = [[int(x) for x in rank.split(",") if x] for rank in answer.split("|")]
    everything = [index for rank in ranks for index in rank]
    if len(everything) <= LITERAL:
        return ranks
    digest = hashlib.sha256(np.array(everything, dtype="<i8").tobytes()).hexdigest()
    return {"lengths": [len(rank) for rank in ranks], "first": everything[:8], "sha256": digest}


def main() -> None:
    site = pathlib.Path(torch.__file__).parent
    flags = ["-std=c++20", "-O1", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    with tempfile.TemporaryDirectory() as folder:
        program = str(pathlib.Path(folder) / "libtorch_goldens")
        headers = [f"-I{site / 'include'}", f"-I{site / 'include/torch/csrc/api/include'}"]
        libraries = [f"-L{site / 'lib'}", f"-Wl,-rpath,{site / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
        source = str(HERE / "libtorch_goldens.cpp")
        subprocess.run(["g++", *flags, *headers, source, *libraries, "-o", program], check=True)
        asked = deals()
        questions = "\n".join([*asked, *(f"walk {walk}" for walk in WALKS)]) + "\n"
        answers = subprocess.run([program], input=questions, check=True, capture_output=True, text=True).stdout
    lines = answers.split("\n")
    compiler = subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout.split("\n")[0]
    built_with = torch.__config__.show().split("\n")[1].strip(" -")
    provenance = {
        "what": "torch::data::samplers::Distributed{Random,Sequential}Sampler, run from the torch wheel's libtorch",
        "torch": torch.__version__,
        "libtorch built with": built_with,
        "driver compiled with": compiler,
        "flags": " ".join(flags),
        "command": "python tests/goldens/make_libtorch_goldens.py",
        "date": datetime.date.today().isoformat(),
        "keys of deals": "kind size num_replicas duplicates epoch",
        "keys of walks": "kind size num_replicas rank duplicates script",
    }
    parts = [f'"provenance": {json.dumps(provenance, indent=1)}']
    deal_keys = [question.removeprefix("deal ") for question in asked]
    for name, first, keys in (("deals", 0, deal_keys), ("walks", len(asked), WALKS)):
        values = lines[first : first + len(keys)]
        stored = [store(v) if name == "deals" else v.split() for v in values]
        rows = (f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in zip(keys, stored, strict=True))
        parts.append(f'"{name}": {{\n' + ",\n".join(rows) + "\n}")
    (HERE / "libtorch.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
