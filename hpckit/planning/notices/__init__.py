"""When a notice is due, and where it goes."""
