"""Problem reports: redacted evidence of a machine in one archive, which becomes a machine of the tests."""
