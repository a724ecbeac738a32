"""Plugin package."""

plugin = object()
