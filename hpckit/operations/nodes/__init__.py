"""Which nodes a new launch leaves out."""
