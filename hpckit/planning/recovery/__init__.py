"""What follows an end: its cause, its budget, the next round or attempt."""
