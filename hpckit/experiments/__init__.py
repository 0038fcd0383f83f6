"""Shipped training code, written as a user would write it. Nothing else imports it."""
