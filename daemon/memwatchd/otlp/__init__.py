"""Metrics pushed over OTLP. Everything here is imported only if [otlp] has an endpoint."""
