"""Readers of drivers and vendor tools. They return plain records and draw no conclusions."""
