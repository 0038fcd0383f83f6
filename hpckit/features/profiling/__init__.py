"""`hpckit profile`: asks a running run for traces, and sums them up. Ranks trace, in runtime."""
