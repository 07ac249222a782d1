// What was before this page was opened: history for the chart, and who has changed what.

import { left, moment } from './format.js';
import { Chart } from './chart.js';
import { get } from './live.js';
import { Table } from './tables.js';

/** The first of the fields that there is. */
const first = (item, ...names) => names.map(name => item[name]).find(value => value !== undefined && value !== null);

const seconds = time => (typeof time === 'number' ? time : new Date(time).getTime() / 1000);

/** Rows for the chart out of the daemon's history; none if it keeps none. */
export async function history() {
  const told = await get('/v1/history?since=1h');
  const points = told && first(told, 'points', 'series', 'slots', 'samples');
  if (!Array.isArray(points)) return [];
  const value = (point, name) => {
    if (name === 'passed') return first(point, 'passed_pps') ?? null;
    const reasons = first(point, 'reasons', 'by_reason') ?? {};
    if (!Array.isArray(reasons)) return first(reasons, name, `drop_${name}`) ?? 0;
    const found = reasons.filter(flow => flow.reason === name && (flow.verdict !== 'pass' || name === 'would_drop'));
    return found.reduce((sum, flow) => sum + flow.pps, 0);
  };
  const names = Chart.names();
  return points
    .filter(point => point && first(point, 'time') !== undefined)
    .map(point => [seconds(point.time), ...names.map(name => (value(point, 'passed') === null ? null : value(point, name)))]);
}

/** The table of changes; `update` asks the daemon for them. */
export function changes(table, none) {
  const what = item => first(item, 'what', 'text', 'summary', 'change', 'kind') ?? '';
  const text = value => (typeof value === 'object' ? JSON.stringify(value) : String(value));
  const until = item => first(item, 'expires', 'until');
  const made = new Table(table, 'Recent changes', [
    { title: 'When', header: true, cell: item => moment(first(item, 'time', 'when', 'at') ?? '') },
    { title: 'Who', cell: item => text(first(item, 'by', 'who', 'user') ?? 'unknown') },
    { title: 'What', wrap: true, cell: item => text(what(item)) },
    { title: 'Ends', cell: item => (until(item) ? left(until(item)) || moment(until(item)) : first(item, 'ttl_seconds') ? `after ${item.ttl_seconds} s` : '') },
  ], item => `${first(item, 'time', 'when', 'at')} ${text(what(item))}`);
  made.update([]);
  return async () => {
    const told = await get('/v1/changes');
    if (!told) return;
    const all = Array.isArray(told) ? told : told.changes ?? [];
    made.update(all.slice(-20).sort((a, b) => seconds(first(b, 'time', 'when', 'at')) - seconds(first(a, 'time', 'when', 'at'))));
    none.hidden = all.length > 0;
  };
}
