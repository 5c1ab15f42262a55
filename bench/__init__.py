"""Reproducible measurements of the exporter; `python -m bench.run` prints them."""
