"""Facts of a machine and its software, as `doctor --env` compares them."""
