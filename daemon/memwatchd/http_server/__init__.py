"""HTTP server: listening sockets, limits for clients, uvicorn."""
