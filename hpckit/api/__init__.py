"""The Python door: launches, looks at runs and acts on them; it must not decide anything itself."""
