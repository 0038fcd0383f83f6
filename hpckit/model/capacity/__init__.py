"""What a training run is planned with, and what a plan says: shapes, GPUs, bytes, seconds."""
