// Draws a dashboard's JSON and its answers with Grafana's own UI library: axes, units, colours and legends are Grafana's.
// Tables and state timelines, which live in the Grafana application, are drawn here in its style. A look, no proof.
import React from 'react';
import { createRoot } from 'react-dom/client';
import { createTheme, applyFieldOverrides, FieldType, dateTime, toDataFrame, getDisplayProcessor, ThemeContext, reduceField, formattedValueToString } from '@grafana/data';
import { TimeSeries, BigValue, PanelChrome, GlobalStyles } from '@grafana/ui';

const asked = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: asked.get('theme') || 'dark' } });
const WIDTH = 1600, GRID = WIDTH / 24, ROW = 36;
const named = (text, labels) => text.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '').trim().replace(/ +/g, ' ');
const bottom = steps => steps.map(step => (step.value === null ? { ...step, value: -Infinity } : step));
const colour = name => theme.visualization.getColorByName(name);

function series(panel, results) {
  return panel.targets.flatMap((target, i) => results[i].map(one => ({
    refId: target.refId, length: one.values.length, fields: [
      { name: 'Time', type: FieldType.time, config: {}, values: one.values.map(v => v[0] * 1000) },
      { name: 'Value', type: FieldType.number, labels: one.metric, config: { displayNameFromDS: named(target.legendFormat, one.metric) }, values: one.values.map(v => +v[1]) }]
  })));
}

const custom = (panel, refId) => {
  const found = panel.fieldConfig.overrides.find(o => o.matcher.id === 'byFrameRefID' && o.matcher.options === refId);
  const own = { hideFrom: { tooltip: false, viz: false, legend: false }, scaleDistribution: { type: 'linear' }, gradientMode: 'none', ...panel.fieldConfig.defaults.custom };
  let color = panel.fieldConfig.defaults.color;
  for (const { id, value } of found?.properties ?? []) {
    if (id === 'color') color = value; else own[id.replace('custom.', '')] = value;
  }
  return { own, color };
};

const unitOf = (panel, field) => panel.fieldConfig.overrides.find(o => o.matcher.id === 'byRegexp' && new RegExp(o.matcher.options.slice(1, -1)).test(field.config.displayNameFromDS))?.properties[0].value ?? panel.fieldConfig.defaults.unit;

function Lines({ panel, results, range, w, h }) {
  const defaults = { ...panel.fieldConfig.defaults, thresholds: { mode: 'absolute', steps: bottom(panel.fieldConfig.defaults.thresholds.steps) } };
  const data = applyFieldOverrides({ data: series(panel, results).map(toDataFrame), fieldConfig: { defaults, overrides: [] }, replaceVariables: s => s, theme, timeZone: 'utc' });
  data.forEach((frame, i) => frame.fields.forEach(field => {
    if (field.type !== FieldType.number) return;
    const { own, color } = custom(panel, frame.refId);
    field.config = { ...defaults, ...field.config, unit: unitOf(panel, field), color, custom: own };
    field.state = { ...field.state, seriesIndex: i };
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
  }));
  return <TimeSeries frames={data} width={w} height={h} timeRange={range} timeZone="utc" legend={panel.options.legend} theme={theme} options={panel.options} />;
}

const display = (unit, steps, mappings, decimals) => getDisplayProcessor({ field: { type: FieldType.number, config: { unit, decimals, mappings, color: { mode: 'thresholds' }, thresholds: { mode: 'absolute', steps: bottom(steps) } } }, theme, timeZone: 'utc' });

function Tile({ panel, results, w, h }) {
  const { thresholds, mappings, decimals } = panel.fieldConfig.defaults;
  return <div style={{ display: 'flex' }}>{series(panel, results).map((frame, i, all) => {
    const field = toDataFrame(frame).fields[1], last = reduceField({ field, reducers: ['lastNotNull'] }).lastNotNull, show = display(unitOf(panel, field), thresholds.steps, mappings, decimals);
    field.config = { color: { mode: 'thresholds' }, thresholds: { mode: 'absolute', steps: bottom(thresholds.steps) } };
    return <BigValue key={i} theme={theme} width={w / all.length} height={h} value={show(last)} colorMode="value" graphMode="area" justifyMode="auto" textMode="auto" sparkline={{ y: field, x: toDataFrame(frame).fields[0] }} />;
  })}</div>;
}

function Table({ panel, results }) {
  const { indexByName, renameByName, excludeByName } = panel.transformations.find(t => t.id === 'organize').options;
  const lines = new Map(), columns = new Set();
  panel.targets.forEach((target, i) => results[i].forEach(one => {
    const { __name__, ...labels } = one.metric, value = `Value #${target.refId}`;
    // As Grafana's merge does: lines join where all that they share is equal.
    let place = [...lines.values()].find(line => Object.entries(labels).every(([k, v]) => !(k in line) || line[k] === v) && !(value in line));
    if (!place) { place = {}; lines.set(lines.size, place); }
    Object.assign(place, labels, { [value]: +one.values.at(-1)[1] });
    [...Object.keys(labels), value].forEach(c => columns.add(c));
  }));
  const shown = [...columns].filter(c => !excludeByName[c]).sort((a, b) => (indexByName[a] ?? 99) - (indexByName[b] ?? 99));
  const looks = Object.fromEntries(panel.fieldConfig.overrides.map(o => [o.matcher.options, Object.fromEntries(o.properties.map(p => [p.id, p.value]))]));
  const cell = (column, line) => {
    if (!column.startsWith('Value #')) return [line[column] ?? '', looks[renameByName[column]]?.links ? { color: theme.colors.text.link } : {}];
    if (!(column in line)) return ['', {}];
    const look = looks[renameByName[column]], found = display(look.unit, look.thresholds?.steps ?? [{ value: null, color: 'green' }], look.mappings ?? [], look.decimals)(line[column]);
    const kind = look['custom.cellOptions']?.type;
    return [formattedValueToString(found), kind === 'color-background' ? { background: found.color, color: '#111' } : kind === 'color-text' ? { color: found.color } : {}];
  };
  return <table style={{ width: '100%', borderCollapse: 'collapse', color: theme.colors.text.primary, fontSize: 13 }}>
    <thead><tr>{shown.map(c => <th key={c} style={{ textAlign: 'left', padding: '5px 8px', fontWeight: 500 }}>{renameByName[c] ?? c}</th>)}</tr></thead>
    <tbody>{[...lines.values()].map((line, i) => <tr key={i} style={{ borderTop: `1px solid ${theme.colors.border.weak}` }}>{shown.map(c => { const [text, style] = cell(c, line); return <td key={c} style={{ padding: '5px 8px', ...style }}>{text}</td>; })}</tr>)}</tbody></table>;
}

function States({ panel, results, range, w, h }) {
  const frames = series(panel, results).sort((a, b) => a.fields[1].config.displayNameFromDS.localeCompare(b.fields[1].config.displayNameFromDS));
  const words = panel.fieldConfig.defaults.mappings[0]?.options ?? {}, left = 110, from = range.from.valueOf(), length = range.to.valueOf() - from;
  const high = Math.min(34, (h - 50) / frames.length), seen = new Set(frames.flatMap(f => f.fields[1].values));
  const ticks = [0, 0.2, 0.4, 0.6, 0.8, 1];
  return <div style={{ position: 'relative', width: w, height: h, color: theme.colors.text.primary, fontSize: 12 }}>
    {frames.map((frame, i) => {
      const [times, values] = frame.fields.map(f => f.values), bars = [];
      times.forEach((t, k) => { const last = bars.at(-1), end = times[k + 1] ?? t; if (last && last.value === values[k] && t - last.end < 1) last.end = end; else bars.push({ value: values[k], begin: t, end }); });
      return <div key={i}><div style={{ position: 'absolute', top: i * high + high / 4, width: left - 8, textAlign: 'right' }}>{frame.fields[1].config.displayNameFromDS}</div>
        {bars.map((bar, k) => <div key={k} title={bar.value} style={{ position: 'absolute', top: i * high + 2, height: high - 4, left: left + (bar.begin - from) / length * (w - left), width: Math.max(1, (bar.end - bar.begin) / length * (w - left)), background: colour(words[bar.value]?.color ?? 'blue'), opacity: 0.8, color: '#111', paddingLeft: 4, overflow: 'hidden', boxSizing: 'border-box' }}>{(bar.end - bar.begin) / length * (w - left) > 60 ? words[bar.value]?.text ?? bar.value : ''}</div>)}</div>;
    })}
    {ticks.map(x => <div key={x} style={{ position: 'absolute', top: frames.length * high + 2, left: Math.min(left + x * (w - left), w - 36), color: theme.colors.text.secondary }}>{new Date(from + x * length).toISOString().slice(11, 16)}</div>)}
    <div style={{ position: 'absolute', bottom: 0, left }}>{Object.entries(words).filter(([v]) => seen.has(+v)).map(([v, one]) => <span key={v} style={{ marginRight: 14 }}><span style={{ display: 'inline-block', width: 12, height: 4, background: colour(one.color), marginRight: 5, verticalAlign: 'middle' }} />{one.text}</span>)}</div>
  </div>;
}

const DRAWN = { timeseries: Lines, stat: Tile, table: Table, 'state-timeline': States };
class Guard extends React.Component {
  state = {};
  static getDerivedStateFromError(e) { return { e }; }
  render() { return this.state.e ? <pre style={{ color: 'red', whiteSpace: 'pre-wrap' }}>{String(this.state.e.stack)}</pre> : this.props.children; }
}

function Shown({ data }) {
  const { dashboard, results, choice } = data;
  const range = { from: dateTime(data.from * 1000), to: dateTime(data.to * 1000), raw: { from: 'now-1h', to: 'now' } };
  const rows = Math.max(...dashboard.panels.map(p => p.gridPos.y + p.gridPos.h));
  const chip = { display: 'inline-block', border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, padding: '3px 8px', marginRight: 10, fontSize: 13 };
  return <ThemeContext.Provider value={theme}><GlobalStyles />
    <div style={{ position: 'relative', width: WIDTH, height: rows * ROW + 84, background: theme.colors.background.canvas, color: theme.colors.text.primary }}>
      <div style={{ padding: '10px 10px 6px', fontSize: 20 }}>{dashboard.title} <span style={{ fontSize: 13, color: theme.colors.text.secondary }}>recorded and simulated engines, made-up prices</span></div>
      <div style={{ padding: '0 10px' }}>{Object.entries(choice).map(([k, v]) => <span key={k} style={chip}><b>{k}</b> {v}</span>)}</div>
      {dashboard.panels.map((panel, i) => {
        const g = panel.gridPos, place = { position: 'absolute', left: g.x * GRID + 4, top: g.y * ROW + 78, width: g.w * GRID - 8, height: g.h * ROW - 8 };
        if (panel.type === 'row') return <div key={i} style={{ ...place, paddingTop: 8 }}><b>{panel.title}</b></div>;
        const Viz = DRAWN[panel.type], empty = results[i].every(r => !r.length);
        return <div key={i} style={place}><PanelChrome title={panel.title} width={place.width} height={place.height}>{(w, h) => empty
          ? <div style={{ display: 'flex', height: h, alignItems: 'center', justifyContent: 'center', color: theme.colors.text.secondary }}>No data</div>
          : <Guard><Viz panel={panel} results={results[i]} range={range} w={w} h={h} /></Guard>}</PanelChrome></div>;
      })}</div></ThemeContext.Provider>;
}
fetch(asked.get('data')).then(r => r.json()).then(data => createRoot(document.getElementById('root')).render(<Guard><Shown data={data} /></Guard>));
