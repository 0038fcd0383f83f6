"""Another layout for a run that continues."""
