"""The kinds of panels that the dashboards are made of, each with its look decided once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import bargauge, heatmap, stat, table, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    TableSortByFieldState,
    VizLegendOptions,
    VizTextDisplayOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.builders.heatmap import HeatmapColorOptions, YAxisConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BarGaugeNamePlacement,
    BarGaugeSizing,
    BarGaugeValueMode,
    BigValueColorMode,
    BigValueGraphMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from .queries import Form, Query
from .variables import SOURCE

USD: Final = "currencyUSD"
COUNT: Final = "short"
RATIO: Final = "percentunit"
SECONDS: Final = "s"
BYTES: Final = "bytes"

_GREEN, _ORANGE, _RED, _PLAIN = "green", "orange", "red", "text"
_REFS = "ABCDEFGHIJ"
_LABEL_WIDTH, _VALUE_WIDTH = 210, 80
"""Pixels of a table's column: of a label always, of a value at least; Grafana gives it 150."""


@dataclass(frozen=True, slots=True)
class Limits:
    """From which value on a number is worth a look (orange) and from which it is bad (red)."""

    look: float | None = None
    bad: float | None = None


BUDGET: Final = Limits(look=0.8, bad=1)
ANY_IS_WORTH_A_LOOK: Final = Limits(look=1)
ANY_IS_BAD: Final = Limits(bad=1)
ERRORS: Final = Limits(look=0.1, bad=0.25)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, its unit, and the query that fills it."""

    title: str
    unit: str
    expr: str
    limits: Limits | None = None
    decimals: int | None = None


Panel = stat.Panel | bargauge.Panel | timeseries.Panel | table.Panel | heatmap.Panel
_Any = TypeVar("_Any", stat.Panel, bargauge.Panel, timeseries.Panel, table.Panel, heatmap.Panel)


def number(
    title: str,
    about: str,
    unit: str,
    expr: str,
    *,
    limits: Limits | None = None,
    states: Mapping[str, tuple[str, str]] | None = None,
    empty: str = "No data",
    decimals: int | None = None,
) -> stat.Panel:
    """Return one large number; `states` gives values a text and a color instead."""
    panel = _start(stat.Panel(), title, about, unit, [Query(expr, "", Form.AT_END)], decimals)
    panel.thresholds(_thresholds(limits)).graph_mode(BigValueGraphMode.NONE).no_value(empty)
    plain = limits is None and states is None
    panel.color_mode(BigValueColorMode.NONE if plain else BigValueColorMode.VALUE)
    panel.reduce_options(_last())
    if states:
        results = {
            value: ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(states.items())
        }
        mappings: list[ValueMapping] = [ValueMap(options=results)]
        panel.mappings(mappings)
    return panel.span(4).height(4)


def bars(
    title: str,
    about: str,
    unit: str,
    *queries: Query,
    limits: Limits | None = None,
    most: float | None = None,
    empty: str = "No data",
    span: int = 8,
    height: int = 8,
) -> bargauge.Panel:
    """Return one horizontal bar a series; a full bar is `most`, or the largest of them."""
    panel = _start(bargauge.Panel(), title, about, unit, queries)
    panel.thresholds(_thresholds(limits)).reduce_options(_last()).no_value(empty)
    panel.orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC)
    panel.value_mode(BarGaugeValueMode.COLOR).name_placement(BarGaugeNamePlacement.LEFT)
    panel.sizing(BarGaugeSizing.AUTO).show_unfilled(True)
    # By itself Grafana takes all the height there is, and cuts long names off where bars are few.
    panel.text(VizTextDisplayOptions().title_size(11).value_size(18))
    if limits is None:
        panel.color_scheme(_palette())
    if most is not None:
        panel.max(most)
    return panel.span(span).height(height)


def course(
    title: str,
    about: str,
    unit: str,
    *queries: Query,
    columns: bool = False,
    most: float | None = None,
    span: int = 12,
    height: int = 8,
) -> timeseries.Panel:
    """Return lines over time, or stacked columns of at least ten minutes each."""
    panel = _start(timeseries.Panel(), title, about, unit, queries)
    # Hours may lie between two uses of a model: a line across them would be invented.
    panel.color_scheme(_palette()).line_width(2).fill_opacity(0).span_nulls(False)
    panel.show_points(VisibilityMode.AUTO)
    if columns:
        panel.draw_style(GraphDrawStyle.BARS).fill_opacity(80).line_width(0).interval("10m")
        panel.stacking(StackingConfig().mode(StackingMode.NORMAL))
    if most is not None:
        panel.max(most)
    legend = VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM)
    panel.legend(legend.display_mode(LegendDisplayMode.LIST))
    tooltip = VizTooltipOptions().mode(TooltipDisplayMode.MULTI)
    panel.tooltip(tooltip.sort(SortOrder.DESCENDING))
    return panel.span(span).height(height)


def rows(
    title: str,
    about: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    sort: str,
    link: tuple[str, str] | None = None,
    span: int = 12,
    height: int = 8,
) -> table.Panel:
    """Return a table: a row for each value of the labels, which are given with their titles.

    `link` makes a label's values (by title) lead to a URL.
    """
    queries = [Query(column.expr, "", Form.CELLS) for column in columns]
    panel = _start(table.Panel(), title, about, COUNT, queries)
    panel.filterable(False).thresholds(_thresholds(None)).min_width(_VALUE_WIDTH)
    panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
    # A single frame keeps the name "Value"; from several, the merge makes one column a query.
    values = [f"Value #{ref}" for ref in _REFS] if len(columns) > 1 else ["Value"]
    renamed = dict(labels) | dict(zip(values, (column.title for column in columns), strict=False))
    order = {name: index for index, name in enumerate(renamed)}
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": order,
                "renameByName": renamed,
            },
        )
    )
    for label_title in labels.values():
        width = DynamicConfigValue(id_val="custom.width", value=_LABEL_WIDTH)
        panel.override_by_name(label_title, [width])
    for column in columns:
        properties = [DynamicConfigValue(id_val="unit", value=column.unit)]
        decimals = _decimals(column.unit, column.decimals)
        if decimals is not None:
            properties.append(DynamicConfigValue(id_val="decimals", value=decimals))
        if column.limits:
            steps = _thresholds(column.limits).build()
            properties.append(DynamicConfigValue(id_val="thresholds", value=steps))
            cell = {"type": "color-text"}
            properties.append(DynamicConfigValue(id_val="custom.cellOptions", value=cell))
        panel.override_by_name(column.title, properties)
    if link:
        label, url = link
        links = [{"title": "Show this project", "url": url}]
        panel.override_by_name(label, [DynamicConfigValue(id_val="links", value=links)])
    panel.sort_by([TableSortByFieldState().display_name(sort).desc(True)])
    return panel.span(span).height(height)


def cloud(
    title: str, about: str, unit: str, expr: str, *, span: int = 12, height: int = 8
) -> heatmap.Panel:
    """Return how often each size occurred over time, darker for more; `unit` is the size's."""
    query = Query(expr, "{{le}}", Form.BUCKETS)
    panel = _start(heatmap.Panel(), title, about, COUNT, [query])
    panel.calculate(False).cell_gap(1).interval("10m").show_legend()
    panel.y_axis(YAxisConfig().unit(unit).decimals(0))
    color = HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64)
    panel.color(color)
    return panel.span(span).height(height)


def _start(
    panel: _Any,
    title: str,
    about: str,
    unit: str,
    queries: Sequence[Query],
    decimals: int | None = None,
) -> _Any:
    panel.title(title).description(about).datasource(SOURCE)
    panel.unit(unit).min(0)
    decimals = _decimals(unit, decimals)
    if decimals is not None:
        panel.decimals(decimals)
    for ref, query in zip(_REFS, queries, strict=False):
        panel.with_target(_target(ref, query))
    return panel


def _decimals(unit: str, wished: int | None) -> int | None:
    """Money is shown to the cent unless something else is wished; the rest as Grafana likes."""
    return 2 if wished is None and unit == USD else wished


def _target(ref: str, query: Query) -> Dataquery:
    target = Dataquery().ref_id(ref).expr(query.expr).datasource(SOURCE)
    target.legend_format(query.legend or "__auto")
    if query.form in (Form.AT_END, Form.CELLS):
        target.instant()
    else:
        target.range()
    if query.form is Form.CELLS:
        target.format(PromQueryFormat.TABLE)
    elif query.form is Form.BUCKETS:
        target.format(PromQueryFormat.HEATMAP)
    return target


def _thresholds(limits: Limits | None) -> ThresholdsConfig:
    steps = [Threshold(value=None, color=_GREEN if limits else _PLAIN)]
    for value, color in ((limits.look, _ORANGE), (limits.bad, _RED)) if limits else ():
        if value is not None:
            steps.append(Threshold(value=value, color=color))
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _last() -> ReduceDataOptions:
    return ReduceDataOptions().values(False).calcs(["lastNotNull"])


def _palette() -> FieldColor:
    return FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC)
