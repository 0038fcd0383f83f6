"""`hpckit bench comm`: what ranks can send each other, what links promise, and what is slow."""
