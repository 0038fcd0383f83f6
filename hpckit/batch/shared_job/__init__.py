"""Runs that share one Slurm job, slot by slot, on its node.

Their shape is planned in planning/jobs.
"""
