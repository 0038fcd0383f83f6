"""How things look: rows, text, JSON. Pure: it reads no file and asks nobody."""
