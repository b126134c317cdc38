"""What pipeline, schedules and streams stand on: micro-batches, dependencies, devices, and the state of threads."""
