"""The Grafana dashboards, generated: `python -m grafana.build` writes them to `dashboards/`."""
