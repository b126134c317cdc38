"""The scripts behind the targets of the Makefile."""

import sys
from pathlib import Path

# They import `support`, which lies beside the notebooks, also where the project is not installed: Colab, conda, a copy.
sys.path.append(str(Path(__file__).resolve().parents[1] / "notebooks"))
