"""A fake NVML library: the C source and its builder."""
