"""What is shown: our record, Slurm's answers and processes put together. It changes nothing."""
