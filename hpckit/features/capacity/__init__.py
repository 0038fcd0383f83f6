"""`hpckit plan`: what a training needs. Starts nothing, and asks no cluster."""
