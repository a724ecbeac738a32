"""The OpenAPI document of a running server."""
