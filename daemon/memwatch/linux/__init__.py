"""Readers and parsers of files of the Linux kernel. No judgement."""
