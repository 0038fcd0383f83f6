"""Runs that share one Slurm job, slot by slot. Their shape is planned in planning/jobs."""
