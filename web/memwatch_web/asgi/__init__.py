"""The ASGI layer: access control, errors, streams, static files."""
