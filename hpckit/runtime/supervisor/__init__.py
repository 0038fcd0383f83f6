"""The one process of an attempt: starts agents, hears notices, records.

It decides by planning. No torch.
"""
