"""`hpckit top`: runs of a launch on a whole terminal, live. It changes a run by `cancel` alone."""
