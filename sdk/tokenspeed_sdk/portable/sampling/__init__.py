"""The seeded sampler, and masks over logits, in Triton."""
