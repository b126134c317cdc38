"""What is particular about the checks of notebook 02; what all exercises have in common is in test_exercises."""

from support.n02 import checks as n02


def strided_class(passes):
    """Make the exercise's class from a function (size, stride) -> an iterable for each pass."""

    class Strided:
        def __init__(self, dataset, stride):
            self.size, self.stride = len(dataset), stride

        def __iter__(self):
            return iter(passes(self.size, self.stride))

    return Strided


def right(size, stride):
    for start in range(stride):
        yield from range(start, size, stride)


def test_a_generator_is_a_right_sampler_and_an_endless_one_is_stopped():
    def endless(size, stride):
        while True:
            yield 0

    assert n02.check_strided(strided_class(right))
    assert n02.check_strided(strided_class(endless)).status == "wrong"


def test_a_sampler_that_is_used_up_is_right_in_its_first_epoch():
    class UsedUp:
        def __init__(self, dataset, stride):
            self.iterator = right(len(dataset), stride)

        def __iter__(self):
            return self.iterator

    verdict = n02.check_strided(UsedUp)
    assert verdict.status == "wrong"
    assert verdict.message.startswith("Strided, second epoch: for size = 6, stride = 2, ")
    assert "begin anew" in verdict.message


def batches(indices, batch_size, drop_last):
    cut = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    return [batch for batch in cut if len(batch) == batch_size or not drop_last]


def test_lists_generators_and_plain_loops_are_right():
    def as_generator(indices, batch_size, drop_last):
        yield from batches(indices, batch_size, drop_last)

    assert n02.check_batches(batches) and n02.check_batches(as_generator)

    def pooled(lengths, order, batch_size, pool):
        cut = []
        for first in range(0, len(order), pool * batch_size):
            part = sorted(order[first : first + pool * batch_size], key=lambda i: lengths[i])
            cut += [part[start : start + batch_size] for start in range(0, len(part), batch_size)]
        return cut

    assert n02.check_pools(pooled)
