"""The web application: JSON API, metrics and pages."""
