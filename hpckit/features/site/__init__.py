"""`hpckit init`: writes the file of a cluster from what Slurm and a node say. It changes no other file."""
