"""What the pipeline notebooks predict, measure and record; a module for each experiment."""
