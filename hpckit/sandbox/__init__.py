"""A real Slurm on one machine, for trying. No run needs it."""
