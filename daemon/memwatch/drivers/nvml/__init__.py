"""NVIDIA's driver as it answers: read in a process of its own, told as plain records."""
