"""The loss of a step whose batch or vocabulary is cut, and whether it may be cut."""
