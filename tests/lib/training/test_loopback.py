"""torchrun's agent on this machine: what it makes of ranks that end in the middle of something."""

import textwrap

import pytest

from lib.training.launch import RankError, torchrun


@pytest.mark.ranks
def test_a_rank_that_is_ended_while_it_writes_its_error_hides_no_other_one(tmp_path):
    """torch's agent raises JSONDecodeError at half an error file, and then has no exit code for anybody."""
    script = tmp_path / "half.py"
    script.write_text(
        textwrap.dedent("""\
            import os, signal, sys, time
            folder, rank = sys.argv[1], os.environ["RANK"]
            if rank == "0":
                with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
                    file.write('{"message": {"mess')
                open(f"{folder}/written", "w").close()
                time.sleep(600)
            while not os.path.exists(f"{folder}/written"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    with pytest.raises(RankError, match="^rank 1 was killed by SIGKILL$") as caught:
        torchrun(script, tmp_path, timeout=60, quiet=True)
    assert any("Root Cause" in line for line in caught.value.run.lines)
