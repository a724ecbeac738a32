"""The core's rules against client noise: one file each, offered by `builtin.py` in their order."""
