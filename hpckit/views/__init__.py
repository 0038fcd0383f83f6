"""What is shown: our record, Slurm's answers and this host's processes put together.

It changes nothing.
"""
