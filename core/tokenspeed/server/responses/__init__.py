"""The OpenAI API of responses: schemas, conversation, bodies, events, and the store."""
