"""What `scripts/bench` measures: a module for each question."""
