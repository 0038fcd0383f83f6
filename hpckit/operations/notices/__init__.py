"""Sends notices to people: when one is due is decided in planning/notices."""
