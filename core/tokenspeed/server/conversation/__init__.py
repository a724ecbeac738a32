"""What every API shares about a request: its prompts, its terms, its session."""
