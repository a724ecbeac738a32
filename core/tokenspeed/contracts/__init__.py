"""Contracts between the planes: data and Protocols only, no behaviour, no torch at import."""
