"""Per-process data: growth, suspected leaks, PSS, allocator reports."""
