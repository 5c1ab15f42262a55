"""Pictures of the dashboards: `python -m grafana.render`."""
