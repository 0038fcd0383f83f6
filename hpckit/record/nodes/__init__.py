"""What happened to nodes, over all launches of a user."""
