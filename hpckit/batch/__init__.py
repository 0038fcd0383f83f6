"""What a Slurm or local job runs: a run, several that share a job, resuming. No command line."""
