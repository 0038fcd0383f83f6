"""A training process: `Run`, its steps, its process group. The user's code runs here."""
