"""Wrong random numbers that once passed exercise 5 of notebook 02, and what they are told now."""

import hashlib
import random
import zlib

import numpy as np
import pytest
import torch

from support.n02 import checks as n02
from support.n02 import meetings, noise, solved
from tests.support.n02.told import is_told


def item_with(crop_and_flip):
    def item_of(key, seed):
        epoch, index = key
        return index, *crop_and_flip(seed, epoch, index)

    return item_of


def crop_and_flip_of(generator):
    return int(generator.integers(100)), int(generator.integers(2))


def number(*source):
    return int(np.random.default_rng(source).integers(2**40))


def flip_of_crop(rule):
    def crop_and_flip(*three):
        crop = number(*three) % 100
        return crop, rule(crop)

    return crop_and_flip


def bits_of_one_digest(*three):
    bits = int(hashlib.sha256(str(three).encode()).hexdigest(), 16)
    return bits % 100, bits // 2 % 2


def told_by_half_the_crops(*three):
    crop, flip = crop_and_flip_of(np.random.default_rng(three))
    return crop, flip if crop < 50 else crop % 2


def flip_seeded_by_the_crop(*three):
    """Crop 0 fills up the tuple as NumPy does: both generators are one."""
    crop, _ = crop_and_flip_of(np.random.default_rng(three))
    return crop, int(np.random.default_rng((*three, crop)).integers(2))


@pytest.mark.costly
@pytest.mark.parametrize(
    "crop_and_flip",
    [
        flip_seeded_by_the_crop,
        bits_of_one_digest,
        told_by_half_the_crops,
        flip_of_crop(lambda crop: crop // 10 % 2),
        flip_of_crop(lambda crop: int(crop % 10 < 5)),
    ],
)
def test_no_crop_tells_its_flip(crop_and_flip):
    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.TWINS)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_a_flip_that_is_seldom_or_often_1_is_not_called_told_by_its_crop(share):
    def crop_and_flip(*three):
        generator = np.random.default_rng(three)
        return int(generator.integers(100)), int(generator.random() < share)

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.UNEVEN)


def test_an_epoch_that_a_product_with_seed_0_swallows_is_not_called_missing_in_the_key():
    def crop_and_flip(seed, epoch, index):
        return crop_and_flip_of(np.random.default_rng((seed * epoch, index)))

    answers = [solved.keys_of, item_with(crop_and_flip)]
    is_told(n02.check_noise, answers, noise.REPEATS)
    assert "the key must" not in n02.check_noise(*answers).message


@pytest.mark.costly
@pytest.mark.parametrize(
    "crop_of",
    [
        lambda generator: round(generator.random() * 99),
        lambda generator: min(99, int(generator.integers(101))),
        lambda generator: int(generator.integers(99)),
    ],
)
def test_the_smallest_and_the_largest_crop_are_as_likely_as_all_others(crop_of):
    def crop_and_flip(*three):
        generator = np.random.default_rng(three)
        return crop_of(generator), int(generator.integers(2))

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.RANGE)


@pytest.mark.costly
@pytest.mark.parametrize(
    "other",
    [
        lambda seed, epoch, index: (seed, index, epoch),
        lambda seed, epoch, index: (epoch, seed, index),
        lambda seed, epoch, index: (index, seed, epoch),
        lambda seed, epoch, index: (seed, epoch, index + 1),
        lambda seed, epoch, index: (seed, epoch + 1, index),
        lambda seed, epoch, index: (seed + 1, epoch, index),
        lambda seed, epoch, index: (seed + 42, epoch, index),
        lambda seed, epoch, index: (seed, epoch + 1000, index),
    ],
)
def test_no_crop_tells_the_flip_of_another_item(other):
    def crop_and_flip(*three):
        return number(*three) % 100, number(*other(*three)) % 2

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], meetings.EXCHANGED)


@pytest.mark.parametrize("tag", [0, 1])
def test_a_tag_in_front_of_one_of_the_two_does_not_keep_them_apart(tag):
    for flip_is_tagged in (True, False):

        def crop_and_flip(*three, crop_of=(tag,) * (not flip_is_tagged), flip_of=(tag,) * flip_is_tagged):
            return number(*crop_of, *three) % 100, number(*flip_of, *three) % 2

        said = next(meetings.faults_of_others(solved.keys_of, item_with(crop_and_flip)))
        assert said.startswith(meetings.EXCHANGED)


@pytest.mark.parametrize(
    "generator",
    [
        lambda seed, epoch, index: random.Random(f"{seed}{epoch}{index}"),
        lambda seed, epoch, index: random.Random(f"{seed}{epoch} {index}"),
        lambda seed, epoch, index: random.Random(f"{seed} {epoch}{index}"),
        lambda seed, epoch, index: random.Random(f"{seed} {(epoch << 26) + index}"),
        lambda seed, epoch, index: random.Random(f"{seed} {10 * epoch + index}"),
    ],
)
def test_no_two_triples_are_run_together_into_one(generator):
    def crop_and_flip(*three):
        draws = generator(*three)
        return draws.randrange(100), draws.randrange(2)

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], meetings.MIXED)


def crc_of_a_text(*three):
    bits = zlib.crc32(",".join(map(str, three)).encode())
    return bits % 100, bits // 100 % 2


def mixed_by_hand(state):
    """Mix as SplitMix64 does, with no generator and no hash of a library."""
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        state = (state ^ (state >> 30)) * factor % 2**64
    return (state >> 7) % 100, state >> 63


@pytest.mark.parametrize(
    "source", [lambda s, e, i: (s * 7919 + e) * 104_729 + i + 1, lambda s, e, i: (s << 40) + 7919 * e + i + 1]
)
def test_items_that_meet_are_found_where_no_generator_is_seeded(source):
    is_told(n02.check_noise, [solved.keys_of, item_with(lambda *three: mixed_by_hand(source(*three)))], meetings.MIXED)


@pytest.mark.parametrize(
    "crop_and_flip, said",
    [
        (lambda s, e, i: (number(s, e, i // 2) % 100, number(s, e, i, 1) % 2), "Items 0 and 1 have the same crop"),
        (lambda s, e, i: (number(s, e, i) % 100, number(s, e, i // 2, 1) % 2), "Items 0 and 1 have the same flip"),
        (lambda s, e, i: (number(s, e // 2, i) % 100, number(s, e, i, 1) % 2), "Epochs 0 and 1 have the same crop"),
        (lambda s, e, i: (number(s, e, i) % 100, number(s, e // 2, i, 1) % 2), "Epochs 0 and 1 have the same flip"),
        (crc_of_a_text, "Items 0 and 1 have the same parity of the crop"),
    ],
)
def test_neither_two_items_nor_two_epochs_share_a_crop_or_a_flip(crop_and_flip, said):
    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], f"{noise.SHARED} {said}")


EP = [0]
NOTES = {}


def keys_that_note_the_epoch(indices, epoch):
    EP[0] = epoch
    return list(indices)


def item_of_the_noted_epoch(key, seed):
    return solved.item_of((EP[0], key), seed)


def keys_that_are_numbers_of_notes(indices, epoch):
    for index in indices:
        NOTES[len(NOTES)] = epoch, index
        yield len(NOTES) - 1


def item_of_a_note(key, seed):
    return solved.item_of(NOTES[key], seed)


def keys_that_share_a_list(indices, epoch):
    EP[0] = epoch
    return [(EP, index) for index in indices]


def item_of_a_shared_list(key, seed):
    (epoch,), index = key
    return solved.item_of((epoch, index), seed)


@pytest.mark.parametrize(
    "answers",
    [
        (keys_that_note_the_epoch, item_of_the_noted_epoch),
        (keys_that_are_numbers_of_notes, item_of_a_note),
        (keys_that_share_a_list, item_of_a_shared_list),
    ],
)
def test_a_key_carries_the_epoch_to_a_worker_that_was_there_before(answers):
    is_told(n02.check_noise, answers, noise.KEPT)


@pytest.mark.parametrize(
    "source",
    [
        lambda seed, epoch, index: (epoch * 10**8 + index, seed),
        lambda seed, epoch, index: (seed * 10**6 + epoch, index),
        lambda seed, epoch, index: (seed * 10**9 + epoch, index),
        lambda seed, epoch, index: (index * 10**6 + epoch, seed),
        lambda seed, epoch, index: ((seed << 32) + epoch, index),
        lambda seed, epoch, index: ((seed << 27) + index, epoch),
        lambda seed, epoch, index: (seed, (epoch * 10**8 + index) % 2**32),
        lambda seed, epoch, index: (seed * 211 + epoch, index),
        lambda seed, epoch, index: (seed + epoch * 211, index),
        lambda seed, epoch, index: (seed * 7919 + epoch) * 104_729 + index,
        lambda seed, epoch, index: (seed * 2_654_435_761 + epoch * 40_503 + index) % 2**32,
        lambda seed, epoch, index: (seed, epoch, int(np.float32(index))),
        lambda seed, epoch, index: (seed % 2**31, epoch, index),
        lambda seed, epoch, index: (seed % 10**9, epoch, index),
        lambda seed, epoch, index: (seed * 10**14 + epoch * 10**8 + index) % 2**63,
        lambda seed, epoch, index: int((seed + epoch / 10**6 + index / 10**14) * 10**14),
    ],
)
def test_words_of_32_bits_and_sums_of_any_kind_make_items_meet(source):
    def crop_and_flip(*three):
        return crop_and_flip_of(np.random.default_rng(source(*three)))

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], meetings.MIXED)


@pytest.mark.parametrize(
    "crop_of, flip_of",
    [
        (lambda s, e, i: number(s, e, i % 1000), lambda s, e, i: number(s, e, i, 1)),
        (lambda s, e, i: number(s, 7919 * e + i), lambda s, e, i: number(s, e, i, 1)),
        (lambda s, e, i: number(s, e, i), lambda s, e, i: number(s, 1000 * e + i, 1)),
        (lambda s, e, i: number(s, e, i), lambda s, e, i: number(s, e + i, 1)),
        (lambda s, e, i: number(s, e, i), lambda s, e, i: number(e, i, 1) + s),
    ],
)
def test_each_of_the_two_numbers_keeps_seed_epoch_and_index_apart(crop_of, flip_of):
    answers = [solved.keys_of, item_with(lambda *three: (crop_of(*three) % 100, flip_of(*three) % 2))]
    is_told(n02.check_noise, answers, meetings.MIXED)


SUMS = {
    "with the factors of a spatial hash": lambda s, e, i: s * 73_856_093 + e * 19_349_663 + i * 83_492_791,
    "with those factors, cut to 32 bits": lambda s, e, i: (s * 73_856_093 + e * 19_349_663 + i * 83_492_791) % 2**32,
    "that ends with a large product": lambda s, e, i: 1_000_000_007 * s + 998_244_353 * e + i,
    "modulo a prime": lambda s, e, i: (s * 1_000_003 + e * 7_368_787 + i * 15_485_863) % 2_147_483_647,
    "cut to 31 bits": lambda s, e, i: (s * 2_654_435_761 + e * 40_503 * 65_537 + i * 1_000_003) & 0x7FFFFFFF,
}


def draws_of_python(source):
    generator = random.Random(source)
    return generator.randrange(100), generator.randrange(2)


def draws_of_torch(source):
    generator = torch.Generator().manual_seed(source)
    return int(torch.randint(100, (), generator=generator)), int(torch.randint(2, (), generator=generator))


@pytest.mark.parametrize(
    "source, draws",
    [
        *((source, lambda number: crop_and_flip_of(np.random.default_rng(number))) for source in SUMS.values()),
        (SUMS["with the factors of a spatial hash"], draws_of_python),
        (SUMS["modulo a prime"], draws_of_torch),
        (lambda s, e, i: (s * 10**14 + e * 10**8 + i) % 2**64, draws_of_torch),
        (lambda s, e, i: f"{73_856_093 * s + 19_349_663 * e + 83_492_791 * i}", draws_of_python),
    ],
)
def test_a_sum_of_products_meets_itself_however_large_the_factors_are(source, draws):
    answers = [solved.keys_of, item_with(lambda *three: draws(source(*three)))]
    is_told(n02.check_noise, answers, meetings.MIXED)


@pytest.mark.parametrize(
    "source",
    [
        lambda s, e, i: (s, 7919 * e + i),
        lambda s, e, i: (s + 12_345 * e, i),
        lambda s, e, i: (s, 104_729 * i + e),
        lambda s, e, i: (s ^ 0xABC, 7919 * e + i),
        lambda s, e, i: 73_856_093 * s + 19_349_663 * e + 83_492_791 * i,
    ],
)
def test_a_flip_is_seeded_as_well_as_a_crop(source):
    def crop_and_flip(*three):
        return number(*three, 1) % 100, int(np.random.default_rng(source(*three)).integers(2))

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], meetings.MIXED)
    said = n02.check_noise(solved.keys_of, item_with(crop_and_flip)).message
    assert "have the flips of" in said


def entry_of_a_table(seed, epoch, index):
    generator = np.random.default_rng((seed, epoch))
    return int(generator.integers(100, size=index + 1)[-1]), int(generator.integers(2, size=index + 1)[-1])


def as_often_as_the_index_says(seed, epoch, index):
    generator = random.Random(f"{seed} {epoch}")
    for _ in range(2 * index):
        generator.random()
    return int(generator.random() * 100), int(generator.random() * 2)


def as_often_as_the_epoch_says(seed, epoch, index):
    return as_often_as_the_index_says(seed, index, epoch)


def multiplied_as_often_as_the_index_says(seed, epoch, index):
    state = (seed << 20 | epoch) + 1
    for _ in range(index + 1):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
    return (state >> 33) % 100, state >> 63


def multiplied_as_often_as_the_epoch_says(seed, epoch, index):
    return multiplied_as_often_as_the_index_says(seed, index, epoch)


@pytest.mark.parametrize(
    "crop_and_flip",
    [
        entry_of_a_table,
        as_often_as_the_index_says,
        as_often_as_the_epoch_says,
        multiplied_as_often_as_the_index_says,
        multiplied_as_often_as_the_epoch_says,
    ],
)
def test_a_large_epoch_or_index_takes_no_more_work(crop_and_flip):
    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.GROWS)


def test_a_generator_that_takes_no_seed_so_large_is_told_the_case():
    def crop_and_flip(seed, epoch, index):
        generator = torch.Generator().manual_seed(seed * 10**14 + epoch * 10**8 + index)
        return int(torch.randint(100, (), generator=generator)), int(torch.randint(2, (), generator=generator))

    said = n02.check_noise(solved.keys_of, item_with(crop_and_flip)).message
    assert "With seed 4294967295, epoch 0 and index 0: your code raised" in said


def test_an_index_that_is_named_twice_has_two_keys():
    keyed_once = lambda indices, epoch: dict.fromkeys((epoch, index) for index in indices)  # noqa: E731
    is_told(n02.check_noise, [keyed_once, solved.item_of], noise.NAMED)


def test_whoever_loses_the_index_in_epoch_0_only_is_not_told_that_it_is_missing():
    def crop_and_flip(seed, epoch, index):
        return crop_and_flip_of(np.random.default_rng((seed, epoch * index)))

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.ALIKE)
    assert noise.ALIKE.startswith("In epoch 0")


def product(seed, epoch, index):
    return (seed + 1) * (epoch + 1) * (index + 1)


def exclusive_or(seed, epoch, index):
    return seed ^ epoch ^ index


@pytest.mark.parametrize("source", [product, exclusive_or])
def test_whoever_adds_nothing_is_not_told_to_have_added(source):
    answers = solved.keys_of, item_with(lambda *three: crop_and_flip_of(np.random.default_rng(source(*three))))
    is_told(n02.check_noise, answers, meetings.MIXED)
    assert "added" not in n02.check_noise(*answers).message


@pytest.mark.parametrize(
    "source, said, not_so",
    [
        (lambda seed, epoch, index: None, noise.ASKED, "generator may live"),
        (lambda seed, epoch, index: ((seed + 1) * epoch, index), noise.SEED, "changes nothing"),
        (lambda seed, epoch, index: (seed, epoch // 2, index), noise.REPEATS, "does not reach"),
    ],
)
def test_numbers_that_come_again_or_never_are_told_what_shows(source, said, not_so):
    answers = solved.keys_of, item_with(lambda *three: crop_and_flip_of(np.random.default_rng(source(*three))))
    is_told(n02.check_noise, answers, said)
    assert not_so not in n02.check_noise(*answers).message


def test_a_flip_that_the_seed_alone_decides_is_not_called_unchanging():
    def crop_and_flip(seed, epoch, index):
        return number(seed, epoch, index) % 100, seed % 2

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.PART)


@pytest.mark.parametrize("crop_of", [lambda drawn: drawn // 2 * 2, lambda drawn: drawn % 2])
def test_crops_that_take_few_values_are_uneven_and_not_called_shared(crop_of):
    def crop_and_flip(*three):
        crop, flip = crop_and_flip_of(np.random.default_rng(three))
        return crop_of(crop), flip

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.UNEVEN)


def test_a_crop_of_100_is_told_the_shape_however_seldom_it_comes():
    def crop_and_flip(*three):
        generator = np.random.default_rng(three)
        return round(generator.random() * 100), int(generator.integers(2))

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], meetings.SHAPE)
