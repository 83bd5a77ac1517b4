"""The HTTP server: sockets, bounds, uvicorn."""
