"""`hpckit export`: metrics of runs for other programs. It reads records, and changes none."""
