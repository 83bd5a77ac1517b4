"""Memory as reported by Linux graphics drivers (DRM): cards in sysfs, clients in /proc/<pid>/fdinfo."""
