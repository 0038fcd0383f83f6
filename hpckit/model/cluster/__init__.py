"""Slurm's nouns: nodes, partitions, limits, preemption. Reading them is slurm's task."""
