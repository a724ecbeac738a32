"""Norms, activations, rotary embedding and embedding rows in Triton."""
