"""NVIDIA's Jetsons and their like: what their kernel's files and `tegrastats` say, without judgement."""
