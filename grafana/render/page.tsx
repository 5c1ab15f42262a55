// Draws a dashboard with Grafana's own components, from its JSON and from Prometheus' answers.
import { createRoot } from 'react-dom/client';
import {
  type DataFrame, type DisplayValue, type Field, type GrafanaTheme2,
  FieldType, ThemeContext, createTheme, dateTime, getDisplayProcessor, getFieldDisplayName,
  standardTransformers, standardTransformersRegistry, toDataFrame, transformDataFrame,
} from '@grafana/data';
import {
  BarGauge, BigValue, LegendDisplayMode, PanelChrome, PortalContainer, Table, TimeSeries,
  VizRepeater,
} from '@grafana/ui';
import { firstValueFrom } from 'rxjs';

type Series = { metric: Record<string, string>; value?: [number, string]; values?: [number, string][] };
type Job = {
  dashboard: any;
  window: { start: number; end: number };
  shown: Record<string, string>;
  size: { width: number; head: number; row: number };
  answers: Record<string, { step: number; targets: Record<string, Series[]> }>;
};
declare const JOB: Job;

const { width: WIDTH, head: HEAD, row: ROW } = JOB.size;
const GAP = 8;
const CELL = (WIDTH - GAP) / 24;
const theme: GrafanaTheme2 = createTheme({ colors: { mode: 'dark' } });
standardTransformersRegistry.setInit(() =>
  [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer].map((transformation: any) => ({
    id: transformation.id, name: transformation.name, transformation,
    editor: () => null, imageDark: '', imageLight: '',
  }))
);

// The legend of a series: its labels filled into the target's format.
function legend(format: string, series: Series): string {
  if (format !== '__auto') {
    return format.replace(/\{\{(\w+)\}\}/g, (_, label) => series.metric[label] ?? label);
  }
  const labels = Object.entries(series.metric).filter(([name]) => name !== '__name__');
  return labels.map(([name, value]) => `${name}="${value}"`).join(', ') || 'Value';
}

// Every step has a point: where Prometheus has none, the line has a gap.
function overTime(series: Series, name: string, step: number): DataFrame {
  const found = new Map(series.values!.map(([at, text]) => [Math.round(at / step), Number(text)]));
  const first = Math.floor(JOB.window.start / step);
  const count = Math.floor(JOB.window.end / step) - first + 1;
  const points = Array.from({ length: count }, (_, index) => first + index);
  const numbers = points.map((at) => found.get(at)).map((value) => (Number.isFinite(value) ? value : null));
  return toDataFrame({
    fields: [
      { name: 'Time', type: FieldType.time, values: points.map((at) => at * step * 1000), config: { interval: step * 1000 } },
      { name: 'Value', type: FieldType.number, values: numbers, labels: series.metric, config: { displayNameFromDS: name } },
    ],
  });
}

function atEnd(series: Series, name: string): DataFrame {
  const value = Number(series.value![1]);
  return toDataFrame({
    fields: [{ name: 'Value', type: FieldType.number, values: [value], config: { displayNameFromDS: name } }],
  });
}

function cells(panel: any, ref: string, answer: Series[]): DataFrame {
  const labels = [...new Set(answer.flatMap((series) => Object.keys(series.metric)))];
  const value = panel.targets.length > 1 ? `Value #${ref}` : 'Value';
  return toDataFrame({
    refId: ref,
    fields: [
      { name: 'Time', type: FieldType.time, values: answer.map(() => JOB.window.end * 1000) },
      ...labels.filter((name) => name !== '__name__').map((name) => (
        { name, type: FieldType.string, values: answer.map((series) => series.metric[name]) }
      )),
      { name: value, type: FieldType.number, values: answer.map((series) => Number(series.value![1])) },
    ],
  });
}

// What the panel's defaults and overrides make of a field.
function configure(panel: any, frame: DataFrame, seriesIndex = 0): DataFrame {
  const { defaults, overrides } = panel.fieldConfig;
  const fields = frame.fields.map((field) => {
    const own: any = field.type === FieldType.number ? structuredClone(defaults) : { custom: {} };
    for (const { matcher, properties } of overrides) {
      if (matcher.id === 'byName' && matcher.options === getFieldDisplayName(field, frame)) {
        for (const { id, value } of properties) {
          if (id.startsWith('custom.')) {
            own.custom = { ...own.custom, [id.slice(7)]: value };
          } else if (id !== 'links') {
            own[id] = value;
          }
        }
      }
    }
    for (const step of own.thresholds?.steps ?? []) {
      step.value ??= -Infinity;
    }
    const ready: Field = { ...field, config: { ...own, ...field.config }, state: { ...field.state, seriesIndex } };
    ready.display = getDisplayProcessor({ field: ready, theme });
    return ready;
  });
  return { ...frame, fields };
}

function frames(panel: any): DataFrame[] {
  const { step, targets } = JOB.answers[panel.id];
  return panel.targets.flatMap((target: any) =>
    targets[target.refId].map((series) => {
      const name = legend(target.legendFormat, series);
      return target.instant ? atEnd(series, name) : overTime(series, name, step);
    })
  ).map((frame: DataFrame, index: number) => configure(panel, frame, index));
}

function displays(panel: any): DisplayValue[] {
  return frames(panel).map((frame) => {
    const field = frame.fields[0];
    return { ...field.display!(field.values[0]), title: getFieldDisplayName(field, frame) };
  });
}

function Nothing({ panel }: any) {
  const text = panel.fieldConfig.defaults.noValue ?? 'No data';
  return <div style={{ display: 'grid', placeItems: 'center', height: '100%', color: theme.colors.text.secondary }}>{text}</div>;
}

function Stat({ panel, width, height }: any) {
  const [value] = displays(panel);
  if (!value) {
    return <Nothing panel={panel} />;
  }
  return (
    <BigValue value={{ ...value, title: undefined }} width={width} height={height} theme={theme}
      colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} justifyMode={panel.options.justifyMode} />
  );
}

function Bars({ panel, width, height }: any) {
  const values = displays(panel);
  if (!values.length) {
    return <Nothing panel={panel} />;
  }
  const { defaults } = panel.fieldConfig;
  const config = configure(panel, toDataFrame({ fields: [{ name: 'Value', type: FieldType.number, values: [0] }] })).fields[0].config;
  const max = defaults.max ?? Math.max(...values.map((value) => value.numeric), 1e-9);
  return (
    <VizRepeater width={width} height={height} orientation={panel.options.orientation} itemSpacing={8}
      minVizHeight={16} minVizWidth={8} source={values} getValues={() => values}
      getAlignmentFactors={(all: DisplayValue[]) => ({
        title: all.reduce((longest, value) => (value.title!.length > longest.length ? value.title! : longest), ''),
        text: all.reduce((longest, value) => (value.text.length > longest.length ? value.text : longest), ''),
        suffix: all.find((value) => value.suffix)?.suffix, prefix: all.find((value) => value.prefix)?.prefix,
      })}
      renderValue={({ value, width, height, alignmentFactors, orientation }: any) => (
        <BarGauge value={value} width={width} height={height} theme={theme} orientation={orientation}
          field={{ ...config, min: 0, max }} alignmentFactors={alignmentFactors} display={(number: number) => (
            { ...value, numeric: number }
          )}
          text={panel.options.text} displayMode={panel.options.displayMode} valueDisplayMode={panel.options.valueMode}
          namePlacement={panel.options.namePlacement} showUnfilled={panel.options.showUnfilled} itemSpacing={8} />
      )} />
  );
}

function Course({ panel, width, height }: any) {
  const data = frames(panel);
  if (!data.length) {
    return <Nothing panel={panel} />;
  }
  // Grafana gives every series a place in the whole.
  data.forEach((frame, index) => {
    frame.fields.forEach((field) => {
      field.state = { ...field.state, origin: { frameIndex: index, fieldIndex: 1 } };
    });
  });
  return (
    <TimeSeries frames={data} width={width} height={height} theme={theme} timeZone="utc"
      timeRange={range()} structureRev={1}
      legend={{ calcs: [], ...panel.options.legend, displayMode: LegendDisplayMode.List }}
      options={panel.options} />
  );
}

function range(): any {
  const from = dateTime(JOB.window.start * 1000);
  const to = dateTime(JOB.window.end * 1000);
  return { from, to, raw: { from, to } };
}

function Cells({ panel, width, height }: any) {
  const data = TABLES.get(panel.id)!;
  if (!data.length) {
    return <Nothing panel={panel} />;
  }
  return (
    <Table data={data} width={width} height={height} showTypeIcons={false}
      initialSortBy={panel.options.sortBy.map(({ displayName, desc }: any) => ({ displayName, desc: desc ?? false }))} />
  );
}

// @grafana/ui has no heatmap: rectangles in the panel's colors.
function Cloud({ panel, width, height }: any) {
  const { step, targets } = JOB.answers[panel.id];
  const edges = targets.A.map((series) => ({ edge: Number(series.metric.le.replace('+Inf', 'Infinity')), series }))
    .sort((one, other) => one.edge - other.edge);
  const counts = edges.map(({ series }) => new Map(series.values!.map(([at, text]) => [Math.round(at / step), Number(text)])));
  const display = getDisplayProcessor({ field: { type: FieldType.number, config: { unit: panel.options.yAxis.unit, decimals: 0 } }, theme });
  const left = 56;
  const bottom = 22;
  const first = Math.floor(JOB.window.start / step);
  const columns = Math.floor(JOB.window.end / step) - first + 1;
  const across = (width - left) / columns;
  const down = (height - bottom) / edges.length;
  const at = (row: number, column: number) => {
    const below = row ? counts[row - 1].get(first + column) ?? 0 : 0;
    return Math.max(0, (counts[row].get(first + column) ?? 0) - below);
  };
  const most = Math.max(...edges.flatMap((_, row) => Array.from({ length: columns }, (_, column) => at(row, column))));
  const hours = [];
  for (let hour = Math.ceil(JOB.window.start / 10800) * 10800; hour <= JOB.window.end; hour += 10800) {
    hours.push(hour);
  }
  return (
    <svg width={width} height={height} fontSize={12} fill={theme.colors.text.primary}>
      {edges.map(({ edge }, row) => (
        <text key={edge} x={left - 8} y={height - bottom - row * down - down / 2 + 4} textAnchor="end">
          {edge === Infinity ? '+Inf' : `${display(edge).text}${display(edge).suffix ?? ''}`}
        </text>
      ))}
      {edges.flatMap(({ edge }, row) => Array.from({ length: columns }, (_, column) => {
        const value = at(row, column);
        return value > 0 && (
          <rect key={`${edge} ${column}`} x={left + column * across} y={height - bottom - (row + 1) * down}
            width={across - 1} height={down - 1} fill={`hsl(210, 80%, ${25 + 55 * Math.sqrt(value / most)}%)`} />
        );
      }))}
      {hours.map((hour) => (
        <text key={hour} x={left + ((hour - JOB.window.start) / (JOB.window.end - JOB.window.start)) * (width - left)} y={height - 4} textAnchor="middle">
          {new Date(hour * 1000).toISOString().slice(11, 16)}
        </text>
      ))}
    </svg>
  );
}

const KINDS: Record<string, any> = { stat: Stat, bargauge: Bars, timeseries: Course, table: Cells, heatmap: Cloud };
const TABLES = new Map<number, DataFrame>();

function Panel({ panel }: any) {
  const { x, y, w, h } = panel.gridPos;
  const style = { position: 'absolute' as const, left: GAP + x * CELL, top: HEAD + y * ROW };
  if (panel.type === 'row') {
    return <div style={{ ...style, fontSize: 16, fontWeight: 500, lineHeight: `${ROW - GAP}px` }}>⌄ {panel.title}</div>;
  }
  const Kind = KINDS[panel.type];
  return (
    <div style={style}>
      <PanelChrome title={panel.title} description={panel.description} width={w * CELL - GAP} height={h * ROW - GAP}>
        {(width, height) => <Kind panel={panel} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

function Dashboard() {
  const { dashboard, shown } = JOB;
  const when = (seconds: number) => new Date(seconds * 1000).toISOString().slice(0, 16).replace('T', ' ');
  const box = { padding: '4px 8px', background: theme.colors.background.primary, border: `1px solid ${theme.colors.border.medium}` };
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }: any) => gridPos.y + gridPos.h));
  return (
    <div style={{ position: 'relative', width: WIDTH, height: HEAD + bottom * ROW }}>
      <div style={{ position: 'absolute', left: GAP, right: GAP, top: 8, display: 'flex', justifyContent: 'space-between' }}>
        <div style={{ fontSize: 18, lineHeight: '32px' }}>{dashboard.title}</div>
        <div style={box}>{when(JOB.window.start)} to {when(JOB.window.end)} UTC</div>
      </div>
      <div style={{ position: 'absolute', left: GAP, top: 50, display: 'flex', gap: 12 }}>
        {Object.entries(shown).map(([label, value]) => (
          <div key={label} style={{ display: 'flex' }}>
            <div style={{ ...box, fontWeight: 500 }}>{label}</div>
            <div style={box}>{value}</div>
          </div>
        ))}
      </div>
      {dashboard.panels.map((panel: any) => <Panel key={panel.id} panel={panel} />)}
    </div>
  );
}

async function main() {
  for (const panel of JOB.dashboard.panels.filter((panel: any) => panel.type === 'table')) {
    const { targets } = JOB.answers[panel.id];
    const full = panel.targets.filter(({ refId }: any) => targets[refId].length);
    const data = full.map(({ refId }: any) => cells(panel, refId, targets[refId]));
    const merged = await firstValueFrom(transformDataFrame(panel.transformations, data));
    TABLES.set(panel.id, configure(panel, merged[0] ?? toDataFrame({ fields: [] })));
  }
  const style = document.createElement('style');
  style.textContent = `*{box-sizing:border-box} body{margin:0;font:400 14px/1.57 Inter,Helvetica,Arial,sans-serif;
    color:${theme.colors.text.primary};background:${theme.colors.background.canvas}} h2,h6{margin:0;font-size:14px;font-weight:500}
    button{background:none;border:0;color:inherit;font:inherit}`;
  document.head.append(style);
  createRoot(document.getElementById('page')!).render(
    <ThemeContext.Provider value={theme}><Dashboard /><PortalContainer /></ThemeContext.Provider>
  );
}

void main();
