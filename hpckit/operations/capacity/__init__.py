"""What `hpckit plan` learns of the user's own code and runs."""
