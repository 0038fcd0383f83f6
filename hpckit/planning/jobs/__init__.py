"""Slurm jobs for runs: arrays, stages, shared and service jobs. Rendering is slurm's task."""
