"""HTTP: the OpenAI-compatible API in front of an engine, and the launcher of its processes."""
