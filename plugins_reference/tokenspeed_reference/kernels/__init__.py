"""Reference kernels: plain torch, any torch device, rows independent of each other."""
