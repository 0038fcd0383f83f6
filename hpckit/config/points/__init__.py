"""Words of a sweep, and files of points, as lists of points. Drawn ones are in planning/sweep."""
