"""Protocols of systemd that memwatchd serves: pressure sockets, the prekill hook of systemd-oomd."""
