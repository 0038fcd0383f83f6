"""The only home of NVML: what NVIDIA GPUs measure and report."""
