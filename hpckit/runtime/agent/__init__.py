"""The one process per node: starts, watches, feeds and ends its ranks. No torch."""
