"""What a training run needs before it runs: memory, time, energy, power. Pure."""
