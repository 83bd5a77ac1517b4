"""Checks of the image with Podman."""
