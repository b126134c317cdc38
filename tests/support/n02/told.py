"""What a wrong answer of notebook 02 is told."""


def is_told(check, answers, said):
    """Hold that an answer is refused with one sentence, and with no other of the exercise's famous ones."""
    verdict = check(*answers)
    assert verdict.status == "wrong"
    assert said in verdict.message, verdict
    others = [sentence for sentence in check.mistakes if sentence != said and sentence in verdict.message]
    assert not others
