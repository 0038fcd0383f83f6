"""What a Slurm or local job runs: one run, several that share a job, resuming.

It knows no command line.
"""
