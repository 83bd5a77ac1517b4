"""Files that an earlier run left on the disk."""
