"""Messages between supervisor, agents and ranks. It proves who speaks, and decides nothing."""
