"""Which nodes are good, and which a job could get."""
