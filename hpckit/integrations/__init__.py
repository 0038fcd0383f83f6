"""Trainers that people have already, a file each, in a run's steps and checkpoints. The core imports none."""
