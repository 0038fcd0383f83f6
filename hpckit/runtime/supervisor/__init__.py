"""The one process of an attempt: starts agents, hears notices, records. No torch."""
