"""Which logged values hold after restarts. Reading them is the task of record/metrics."""
