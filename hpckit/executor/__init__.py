"""The executor: calls of Python functions as runs; it must not decide how runs start, recover or end."""
