"""`make save`: an unchanged notebook gives the same file, a failed run leaves the old one, nothing random is stored."""

from pathlib import Path

import nbformat
import pytest

from tools import save
from tools.execute import FAILURES
from tools.kept import WIDGET

SMALL = """
# NBVAL_IGNORE_OUTPUT
import time

time.perf_counter()
---
object()
---
import sys

print("a"); sys.stdout.flush(); print("b"); print("c", file=sys.stderr)
---
from lib.show.style import new_figure

figure, axes = new_figure(3, 2)
axes.plot([1, 2])
figure
---
from lib.show.explore import explore, whole

explore(lambda n: figure, n=whole(1, 3, 2, "n"))
---
1 / 0
"""


def write(path: Path, text: str, tags: dict[int, list[str]] | None = None) -> Path:
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in text.strip().split("---\n")]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {"tags": (tags or {}).get(number, []), "scrolled": True}
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def outputs(path: Path) -> list:
    return [cell.outputs for cell in nbformat.read(path, as_version=4).cells]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    path = write(tmp_path_factory.mktemp("save") / "small.ipynb", SMALL, {5: ["raises-exception"]})
    texts = []
    for _ in range(2):
        save.save(path)
        texts.append(path.read_text())
    return path, texts


@pytest.mark.costly
def test_every_cell_has_run_and_neither_savings_nor_editors_leave_a_trace_in_the_file(saved: tuple[Path, list[str]]):
    notebook = nbformat.read(saved[0], as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3, 4, 5, 6]
    assert all(cell.outputs for cell in notebook.cells)
    assert set(notebook.metadata) == {"kernelspec", "language_info", "idt"}
    assert "version" not in notebook.metadata.language_info
    assert {key for cell in notebook.cells for key in cell.metadata} == {"tags"}
    _, (first, second) = saved
    assert first == second  # and so each one after it, which begins with the same bytes


def test_text_is_stored_joined_and_an_interactive_figure_as_its_first_frame(saved: tuple[Path, list[str]]) -> None:
    _, _, chunks, _, (figure,), _ = outputs(saved[0])
    assert {output.name: output.text for output in chunks} == {"stdout": "a\nb\n", "stderr": "c\n"}
    assert set(figure.data) == {"image/png", "text/plain"}
    assert figure.metadata["image/png"]["alt"] == figure.data["text/plain"]


@pytest.mark.costly
def test_measured_numbers_stay_until_their_code_changes_and_a_changed_result_is_reported(tmp_path: Path) -> None:
    measures = "# NBVAL_IGNORE_OUTPUT\nprint(time.perf_counter(), size)"
    path = write(tmp_path / "measured.ipynb", f"import time\n\nsize = 1\nx = 1\n---\n{measures}")
    save.save(path)
    first = outputs(path)[1]
    assert "1 measured outputs kept" in save.save(path)
    path.write_text(path.read_text().replace("x = 1", "x = 2"))
    assert "1 measured outputs kept" in save.save(path)  # it reads no x
    assert outputs(path)[1] == first
    save.save(path, fresh=True)
    second = outputs(path)[1]
    assert second != first
    path.write_text(path.read_text().replace("size = 1", "size = 2"))
    assert "kept" not in save.save(path)
    third = outputs(path)[1]
    assert third != second
    path.write_text(path.read_text().replace("print(time", "print(-time"))
    assert "kept" not in save.save(path)
    assert outputs(path)[1] != third
    (tmp_path / "value.txt").write_text("1")
    path = write(tmp_path / "reads.ipynb", 'print(open("value.txt").read())\n---\n"same"')
    assert "cell 0: first output" in save.save(path)
    (tmp_path / "value.txt").write_text("2")
    report = save.save(path)
    assert "cell 0: its output changed (stdout)" in report
    assert "cell 1" not in report
    assert outputs(path)[0][0].text == "2\n"


def test_a_failed_run_or_a_broken_write_leaves_the_old_file_and_no_debris(tmp_path, monkeypatch):
    path = write(tmp_path / "fails.ipynb", "1 / 0")
    before = path.read_bytes()
    with pytest.raises(FAILURES, match="ZeroDivisionError"):
        save.save(path)
    assert path.read_bytes() == before
    path = write(tmp_path / "kept.ipynb", "x = 1")
    before = path.read_bytes()
    notebook = nbformat.read(path, as_version=4)
    monkeypatch.setattr(save.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save.write_notebook(notebook, path)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fails.ipynb", "kept.ipynb"]


def test_a_widget_without_a_picture_is_refused_and_a_traceback_names_no_folder_of_this_machine() -> None:
    output = nbformat.v4.new_output("display_data", {WIDGET: {"model_id": "1"}, "text/plain": "IntSlider()"})
    with pytest.raises(ValueError, match=r"lib\.show\.explore"):
        save.tidy_outputs([output])
    line = f'File "{save.ROOT}/lib/data/samplers.py", in "/venv/lib/python3.11/site-packages/torch/x.py"'
    assert save.without_paths(line) == 'File "lib/data/samplers.py", in "site-packages/torch/x.py"'


@pytest.mark.timeout(30)
def test_the_patterns_do_not_choke_on_a_picture_inside_a_page() -> None:
    """A pattern that tries every position of a long word takes minutes here; the test's own time limit notices."""
    picture = "data:image/png;base64," + "iVBOR/w0" * 50_000
    assert save.sanitized(f"<img src={picture}>", save.sanitizers()) == f"<img src={picture}>"
    warning = "File /x/ipykernel_12/34.py:1: UserWarning"
    assert save.sanitized(warning, save.sanitizers()) == "File CELL.py:1: UserWarning"


@pytest.mark.parametrize("kind", ["object", "Other"])
def test_text_that_differs_only_in_an_address_stays_as_it_was(kind: str) -> None:
    old, new = (
        [
            nbformat.v4.new_output(
                "execute_result", {"text/plain": f"<{name} at 0x7f{number:010}>", "image/png": str(number)}
            )
        ]
        for name, number in (("object", 1), (kind, 2))
    )
    wanted = {"text/plain": (old if kind == "object" else new)[0].data["text/plain"], "image/png": "2"}
    save.keep_equal_text(old, new, save.sanitizers())
    assert new[0].data == wanted
