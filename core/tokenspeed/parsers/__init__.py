"""Parsers of answers: a file a format, on one small engine (`source.py`, `script.py`)."""
