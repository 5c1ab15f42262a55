"""The variables that all dashboards share, so that links between them keep what was chosen."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import (
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from .queries import exporter

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that the user chose, whatever it is called."""


def data_source() -> DatasourceVariable:
    """Return the choice of the Prometheus that is asked."""
    return DatasourceVariable("datasource").label("Data source").type("prometheus")


def choices(hide_usage: bool = False) -> Iterator[QueryVariable]:
    """Yield the choices of job, instance, project and model.

    With `hide_usage` the last two are not shown: the dashboard has no use for them and only hands
    them on.
    """
    info = "gemini_cli_exporter_build_info"
    hide = VariableHide.HIDE_VARIABLE if hide_usage else VariableHide.DONT_HIDE
    instances = f'{info}{{job=~"$job"}}'
    projects = exporter("gemini_cli_turns_total")
    models = f'{projects[:-1]},project=~"$project"}}'
    yield choice("job", "Job", info)
    yield choice("instance", "Instance", instances)
    # Where the exporter is set to leave the label out, `.+` would match nothing at all.
    yield choice("project", "Project", projects).all_value(".*").hide(hide)
    yield choice("model", "Model", models).hide(hide)


def choice(name: str, label: str, series: str) -> QueryVariable:
    """Return the choice of the values that a label has in series, by a name and a title."""
    query = f"label_values({series}, {name})"
    return (
        QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        # The form in which Grafana itself saves a query of this kind.
        .query({"qryType": 1, "query": query, "refId": f"{name}-values"})
        .definition(query)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(VariableOption(text=["All"], value=["$__all"]))
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
