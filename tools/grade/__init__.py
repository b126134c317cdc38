"""Grade a folder of a student's notebooks: what is right, what is wrong and why, what nobody has tried."""
