"""The tour of docs/lib.md runs as it is printed, one piece after the other, and what it says of numbers holds."""

import re
import subprocess
import sys

from tools.project import ROOT


def test_the_pieces_run_one_after_the_other(tmp_path):
    text = (ROOT / "docs" / "lib.md").read_text(encoding="utf-8")
    pieces = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(pieces) == 4
    code = "".join(pieces) + "\nprint(round(simulate(table, forward=1, backward=2).bubble, 2), len(exact), len(losses))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0.11 125 8\n"
    assert "# 0.11:" in code
    assert (tmp_path / "trace.json").exists()
