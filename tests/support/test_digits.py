"""The digits are written once, whole or not at all, and read back as they were."""

import multiprocessing
import os

import pytest
import torch
from torch.utils.data import DataLoader

from support import digits
from support.digits import Digits, decode_image, digit_of, parse_row, rows_of_file, write_digits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("data") / "digits")


def test_the_meta_file_reads_like_an_image_caption_set_and_writing_again_changes_nothing(folder):
    lines = (folder / "meta.txt").read_text().splitlines()
    assert lines[:2] == ["#filename label", 'img/0001.png "a handwritten zero"']
    train, test, everything = (rows_of_file(folder / f"{name}.txt") for name in ("train", "test", "meta"))
    assert (len(train), len(test)) == (1437, 360)
    assert train + test == everything
    assert len(lines) == 1 + 1797
    assert len(list((folder / "img").iterdir())) == 1797
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert write_digits(folder) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_pixels_and_labels_survive_the_file_and_workers_can_load_it(folder):
    from sklearn.datasets import load_digits

    original = load_digits()
    data = Digits(folder, "meta")
    for index in (0, 5, 1796):
        image, label = data[index]
        assert image.shape == (1, 8, 8)
        assert image.dtype == torch.float32
        assert torch.equal((image[0] * 16).round(), torch.tensor(original.images[index], dtype=torch.float32))
        assert label == original.target[index]
    images, labels = next(iter(DataLoader(Digits(folder, transform=torch.flatten), batch_size=8, num_workers=1)))
    assert images.shape == (8, 64)
    assert labels.tolist() == [Digits(folder)[i][1] for i in range(8)]
    assert decode_image(folder / "img" / "0001.png").max() <= 1


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(digits, "_write_into", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_digits(tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_start_at_once_write_one_folder(tmp_path):
    context = multiprocessing.get_context("fork")  # each has imported all: they begin at the same moment
    with context.Pool(3) as pool:
        written = pool.map(write_digits, [tmp_path / "digits"] * 3)
    assert written == [tmp_path / "digits"] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]
    assert len(os.listdir(tmp_path / "digits" / "img")) == 1797


def test_somebody_elses_folder_is_neither_touched_nor_read(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="choose another folder"):
        write_digits(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(FileNotFoundError, match="call write_digits"):
        Digits(tmp_path / "digits")
    with pytest.raises(ValueError, match="'validation'"):
        Digits(tmp_path, "validation")


def test_a_row_is_a_file_name_and_a_quoted_caption_that_names_its_digit(tmp_path):
    assert parse_row('img/0007.png "a handwritten six"\n') == ("img/0007.png", "a handwritten six")
    for row in ("", "img/0007.png", "img/0007.png six", 'img/0007.png "'):
        with pytest.raises(ValueError, match="a row reads"):
            parse_row(row)
    assert [digit_of(f"a handwritten {word}") for word in digits.WORDS] == list(range(10))
    with pytest.raises(ValueError, match="handwritten eleven"):
        digit_of("a handwritten eleven")
    (tmp_path / "meta.txt").write_text('#filename label\n\nimg/1.png "a one"\n   \n')
    assert rows_of_file(tmp_path / "meta.txt") == ['img/1.png "a one"'], "header and blank lines are no rows"
