"""The frozen code of a launch: what is copied, what is not, what differs from another launch."""
