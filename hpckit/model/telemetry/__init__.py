"""What nodes measure: names, units, rows, and their form in files. Measuring is observe's task."""
