"""What a plan of a training says, as text and as JSON."""
