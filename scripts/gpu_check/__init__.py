"""What waits for a GPU, by one command: measures, judges, and writes a JSON file and a page.

Measures through hpckit's own verbs, and knows nothing that they do not say.
"""
