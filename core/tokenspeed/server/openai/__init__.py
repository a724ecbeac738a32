"""The OpenAI API of chat and plain completions: schemas and bodies."""
