"""Memory estimates for models, from their shape or their files' headers, and the devices with enough room."""
