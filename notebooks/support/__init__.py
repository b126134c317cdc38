"""What the notebooks show and ask, not what they teach: pictures, checks, measurements; a room for each notebook."""
