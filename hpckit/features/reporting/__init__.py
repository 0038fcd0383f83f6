"""`hpckit report` and `hpckit plot`: runs as a page, a text and a figure. They change no run."""
