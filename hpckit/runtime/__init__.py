"""Processes of a run: supervisor, agents, ranks. It knows neither Hydra nor Slurm's programs."""
