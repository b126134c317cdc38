"""What the checks of all rooms are made of: mistakes, judges, exact guesses, and the threads of a reader."""
