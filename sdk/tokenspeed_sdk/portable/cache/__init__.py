"""Moves of keys and values, and preparation of a step on the device, in Triton."""
