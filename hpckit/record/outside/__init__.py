"""Notices that wait to be sent."""
