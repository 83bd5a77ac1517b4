"""History in memory, and in files: a power loss, a full disk or a flipped bit can only lose records."""
