"""What README prints of the simulated device, run as it stands there."""

import subprocess
import sys

from tools.project import ROOT


def test_the_example_finds_the_missing_wait_and_measures_overlap(device):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## Test stream code without a GPU") :]
    code = section.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout == "0.5\nnan 500000.0\n", done.stderr
