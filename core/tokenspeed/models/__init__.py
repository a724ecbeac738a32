"""Architectures: one file each, ending in `EntryClass`; loaded by name, never imported here."""
