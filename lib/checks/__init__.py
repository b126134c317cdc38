"""Exercise checks, a module per notebook (`n02` for 02_…), on the base in `lib.checks.base`."""

from lib.checks.base import Exercise, Guess, Verdict, check_function, check_value, guess

__all__ = ["Exercise", "Guess", "Verdict", "check_function", "check_value", "guess"]
