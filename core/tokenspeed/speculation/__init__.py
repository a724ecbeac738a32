"""Speculation: what verifies drafts, and how many of them are worth a step's time. No torch."""
