"""A Prometheus exporter for Gemini CLI: exact token and cost counters from its transcripts."""

__version__ = "0.1.0"
