"""NVML: read in a separate process, returned as plain records."""
