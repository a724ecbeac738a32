"""KV stores: host memory, and local disk."""
