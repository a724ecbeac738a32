"""The Anthropic API of messages: schemas, conversation, bodies and events."""
