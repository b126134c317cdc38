"""What the checks of all rooms are made of; it imports nothing but itself.

verdict, guess, exact, exercise, compare  what a check says, of what it is asked, and how answers are compared
stub, source, mistakes                    the text of an answer: none yet, taken apart, made wrong on purpose
judged, raised, threads                   an answer that is tried out: its faults, its exceptions, its threads
outside, apart                            what an answer keeps from call to call; a process of its own for it
ending                                    an answer that would loop forever
values, portable                          how a value is told, and what a page would lack
"""
