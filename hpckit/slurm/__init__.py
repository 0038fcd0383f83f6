"""Slurm's only home: runs its programs, reads what they print, renders scripts, submits them."""
