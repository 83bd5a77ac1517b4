"""Readers and parsers of Linux kernel files. They draw no conclusions."""
