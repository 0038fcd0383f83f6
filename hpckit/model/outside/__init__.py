"""Settings of what is told to others: notices and trackers. Sending is the task of operations."""
