"""Facts of this machine for `doctor --env`. They are compared in planning/compatibility."""
