// What was before this page was opened: history for the chart, and who has changed what.

import { Chart } from './chart.js';
import { left, moment } from './format.js';
import { get } from './live.js';
import { Table } from './tables.js';

/** Changes that are shown. */
const MOST = 20;

/** Rows for the chart out of the daemon's history: a time and a value for each line. */
export async function history() {
  const told = await get('/v1/history?since=1h');
  if (!Array.isArray(told?.time)) return [];
  const columns = Chart.names().map(name => {
    if (name === 'passed') return told.passed_pps;
    const found = told.reasons.find(one => one.reason === name && (one.verdict === 'drop' || name === 'would_drop'));
    // Where nothing of a kind was counted there is no column for it.
    return found ? found.pps : told.passed_pps.map(pps => (pps === null ? null : 0));
  });
  const rows = told.time.map((time, at) => [time, ...columns.map(column => column[at] ?? null)]);
  // What was before the first daemon is no time that the chart is about.
  const first = rows.findIndex(([, passed]) => passed !== null);
  return first < 0 ? [] : rows.slice(first);
}

/** A change in words. */
function words(item) {
  const subject = item.interface ? `${item.interface}${item.mode ? ` (${item.mode})` : ''}` : '';
  const kind = item.event === 'policy' ? '' : item.event ?? '';
  const confirm = item.confirm_seconds ? `reverted unless confirmed in ${item.confirm_seconds} s` : '';
  return [kind, subject, item.what ?? '', confirm].filter(Boolean).join(', ');
}

/** When what a change has made ends. */
function ends(item) {
  if (!item.ttl_seconds) return '';
  const until = new Date(new Date(item.time).getTime() + 1000 * item.ttl_seconds).toISOString();
  return left(until) || 'over';
}

/** The table of changes; what is returned asks the daemon for them. */
export function changes(table, none) {
  const made = new Table(table, 'Recent changes', [
    { title: 'When', header: true, cell: item => moment(item.time) },
    { title: 'Who', cell: item => item.by?.user ?? 'the daemon' },
    { title: 'What', wrap: true, cell: words },
    { title: 'Ends', cell: ends },
  ], item => `${item.time} ${words(item)}`);
  made.update([]);
  return async () => {
    const told = await get('/v1/changes');
    if (!Array.isArray(told?.changes)) return;
    made.update(told.changes.slice(-MOST).reverse());
    none.hidden = told.changes.length > 0;
  };
}
