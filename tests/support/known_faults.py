"""What exercises still tell falsely: (exercise, answer, what it is told)."""

# Who repairs one takes it out: an entry that is true now fails the test. None is added.
KNOWN = [
    ("n13.check_prefetch", "gives None", "your code raised TypeError: 'NoneType' object is not iterable"),
    ("n13.check_prefetch", "gives a number", "your code raised TypeError: 'int' object is not iterable"),
    ("n13.check_prefetch", "raises a bare number", "your code raised KeyError: 7"),
    ("n13.check_streamed", "raises a bare number", "your code raised KeyError: 7"),
]  # fmt: skip
