"""Verbs that look after launches and the installation: clean, rm, doctor."""
