"""The health of a node: what is measured, and the verdict. The limits are in planning/preflight."""
