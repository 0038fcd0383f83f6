"""Tries a user's model on meta in a fake world, before it is launched: does it fit its layout."""
