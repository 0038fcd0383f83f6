"""The view models of `top`, drawn in cli/terminal."""
