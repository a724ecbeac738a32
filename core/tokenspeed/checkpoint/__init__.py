"""Checkpoint files as plain data, without torch: folder and header reading for the tokenizer (API
processes) and the weight formats (engine) alike."""
