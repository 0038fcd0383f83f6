"""Files: paths of a launch folder, reading, writing, locks. It decides nothing."""
