"""Paged attention of keys and values in Triton: decode rows, shared beginnings, chunks, writes.

offers.py    what is offered, as data
backend.py   the AttentionBackend: calls the rest in order
tuning.py    shapes of tiles and ways of cutting caches, from shapes and the device
steps.py     what a step's kernels read, from an AttentionBatch or DecodeRows
tiles.py     the loop over tiles of keys that all kernels share
rows.py      decode rows, and what several of them share
chunks.py    rows of many query tokens
merge.py     joins partial results
writing.py   stores keys and values
preparing.py norms of heads, rotation and the store in one launch
"""
