"""History on disk: files of bounded size. A power loss, a full disk or a flipped bit can only lose records."""
