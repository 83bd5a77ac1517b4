"""Programs that are run by hand or by make: `PYTHONPATH=tests python -m scripts.NAME`."""
