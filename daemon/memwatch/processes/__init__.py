"""Per-process views: growth, leaks, PSS, allocator reports."""
