"""REST: /api/v1 and its schema."""
