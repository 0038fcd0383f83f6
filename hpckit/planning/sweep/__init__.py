"""Points of a sweep: drawn or from a file. What a run draws for itself is in runtime/study."""
