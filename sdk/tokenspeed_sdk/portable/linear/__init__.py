"""Products with weights, dense and encoded, and what decodes and encodes them."""
