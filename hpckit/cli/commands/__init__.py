"""A file for each verb, imported when it is called. What a verb does is in operations."""
