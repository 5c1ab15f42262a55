"""Lets `python -m exporter` do what the command `gemini-cli-exporter` does."""

from .cli import main

raise SystemExit(main())
