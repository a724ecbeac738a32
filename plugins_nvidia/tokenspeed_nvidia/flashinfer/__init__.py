"""FlashInfer's kernels behind slots; they exist where the library and prebuilt modules are."""
