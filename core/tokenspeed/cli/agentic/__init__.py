"""`tokenspeed bench agentic`: sessions of coding agents against any OpenAI-compatible server."""
