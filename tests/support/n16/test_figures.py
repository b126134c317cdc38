"""The figures of notebook 16 draw what they say."""

from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from support import recordings
from support.n16 import figures as n16
from support.training import Step


def test_what_an_attempt_lost_is_hatched_and_a_row_counted_twice_is_told():
    def step(attempt, number, rows):
        return Step(attempt, 1, 0, 0, 0, number, rows, 0.0, 0.0, 0.0)

    done = [step(0, 0, (0,)), step(0, 1, (1,)), step(1, 1, (1,)), step(1, 2, (0,))]
    figure = n16.draw_attempts(done, {0: (0, 2)})
    assert [patch.cell.mark for patch in drawn_cells(figure)] == ["plain", "padding", "plain", "plain"]
    assert "1 step done again; 2 rows counted, 1 of them twice" in alt_text(figure)
    assert "rank 0 killed in step 2" in alt_text(figure)


def results(**shifts):
    base = [0.90, 0.92, 0.91, 0.93]
    spread = (0.5, 1.5, 1, 1)
    shifts = {"full shuffle": 0.0, **shifts}
    return {name: [{"accuracy": a + s * f} for a, f in zip(base, spread, strict=True)] for name, s in shifts.items()}


def test_a_loss_is_claimed_only_beyond_zero_and_titles_count_what_the_lines_say():
    same, worse = n16.statements(results(same=0.0, worse=-0.02))
    assert "4 seeds show no difference; a loss above 0.00" in same
    assert worse.endswith("worse")
    assert "0 of 1 ways lose accuracy" in n16.draw_losses(results(same=0.0), "here").axes[0].get_title("left")
    lines = n16.statements(results(a=-0.02, b=-0.03, c=-0.04, d=-0.05))  # p = 0.016, and four comparisons
    assert all(line.endswith("worse, but doubtful") for line in lines)
    figure = n16.draw_losses(results(a=-0.02, b=-0.03, c=-0.04, d=-0.05), "here")
    assert "0 of 4 ways lose accuracy; −2.00 is doubtful; −3.00" in " ".join(figure.axes[0].get_title("left").split())
    record = recordings.load("rank_accuracy")
    lines = n16.statements(record["results"])
    words = " ".join(n16.draw_losses(record["results"], "there").axes[0].get_title("left").split())
    assert words.startswith(f"{sum(line.endswith('worse') for line in lines)} of {len(lines)} ways lose")
    assert words.count("is doubtful") == sum(line.endswith("worse, but doubtful") for line in lines)
