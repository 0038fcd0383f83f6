"""Answers to a question: by a run that writes a file, or by what Slurm says of a plan."""
