// Packets per second over time, by what became of them.

import { clock, pps } from './format.js';
import { element, say } from './tables.js';

/** Seconds that are kept. */
const KEPT = 3600;

/** Seconds that are shown. */
const SHOWN = 600;

/** Seconds that the chart is wide, at least. */
const LEAST = 60;

const LINES = [
  ['passed', 'Passed', '--passed', []],
  ['over_limit', 'Over limit', '--over', []],
  ['denied', 'Denied', '--denied', [8, 4]],
  ['over_shared_limit', 'Over a shared limit', '--shared', [2, 3]],
  ['over_total_limit', 'Over the total', '--total', [6, 2, 2, 2]],
  ['over_peer_budget', 'Over a peer\'s budget', '--peer', [1, 3]],
  ['over_group_limit', 'Over the group limit', '--group', [12, 2, 2, 2]],
  ['over_destination_limit', 'Over a destination\'s limit', '--destination', [2, 6]],
  ['set_full', 'Table full', '--full', [10, 3]],
  ['malformed', 'Malformed', '--malformed', [3, 3]],
  ['would_drop', 'Would be dropped', '--would', [4, 6]],
];

/** What a report says of each line. */
function values(report) {
  const of = name => report.reasons
    .filter(flow => flow.reason === name && (flow.verdict === 'drop' || name === 'would_drop'))
    .reduce((sum, flow) => sum + flow.pps, 0);
  return LINES.map(([name]) => (name === 'passed' ? report.passed.pps : of(name)));
}

export class Chart {
  constructor(place, legend, text) {
    this.place = place;
    this.text = text;
    this.data = [[], ...LINES.map(() => [])];
    this.shown = LINES.map(() => true);
    this.plot = null;
    this.told = 0;
    if (typeof uPlot === 'undefined') {
      say(place, 'This program was built without its chart library: build it with `cargo xtask build`.');
      return;
    }
    this.legend(legend);
    this.make();
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(place);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      this.plot.destroy();
      this.make();
    });
  }

  size() {
    const width = Math.max(200, Math.floor(this.place.clientWidth));
    return { width, height: width < 500 ? 220 : 280 };
  }

  make() {
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim();
    const axis = { stroke: colour('--text'), grid: { stroke: colour('--line') }, ticks: { stroke: colour('--line') } };
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { x: { range: (_, first, last) => [Math.min(first ?? 0, (last ?? 0) - LEAST), last ?? 0] }, y: { range: (_, least, most) => [0, Math.max(10, most * 1.1)] } },
      axes: [{ ...axis, space: 70, values: (_, ticks) => (this.data[0].length ? ticks.map(clock) : []) }, { ...axis, size: 90, values: (_, ticks) => ticks.map(tick => pps(tick)) }],
      series: [{}, ...LINES.map(([, label, name, dash], at) => ({
        label, stroke: colour(name), width: 2, dash, show: this.shown[at] && !this.buttons[at].hidden, points: { show: false }, spanGaps: false,
      }))],
    }, this.window(), this.place);
  }

  legend(legend) {
    this.buttons = LINES.map(([name, label], at) => {
      const button = element('button', label, `line-${name}`);
      button.type = 'button';
      button.setAttribute('aria-pressed', 'true');
      button.addEventListener('click', () => {
        this.shown[at] = !this.shown[at];
        button.setAttribute('aria-pressed', String(this.shown[at]));
        this.plot.setSeries(at + 1, { show: this.shown[at] });
      });
      legend.append(button);
      return button;
    });
  }

  /** Offers the lines of which there was something in the time shown, and what passed. */
  offer(shown) {
    this.buttons.forEach((button, at) => {
      const matters = at === 0 || shown[at + 1].some(value => value > 0);
      if (button.hidden === !matters) return;
      button.hidden = !matters;
      this.plot.setSeries(at + 1, { show: matters && this.shown[at] });
    });
  }

  /** The last minutes of what is kept. */
  window() {
    const [times] = this.data;
    const from = times.findIndex(time => time >= times[times.length - 1] - SHOWN);
    return this.data.map(row => row.slice(Math.max(0, from)));
  }

  /** Puts what was before this page in front: rows of a time and a value for each line. */
  before(rows) {
    const [first] = this.data[0];
    const older = rows.filter(([time]) => first === undefined || time < first).slice(-KEPT);
    this.data = this.data.map((row, at) => [...older.map(values => values[at]), ...row]);
    this.draw();
  }

  /** The names of the lines, in the order of values. */
  static names() {
    return LINES.map(([name]) => name);
  }

  add(report) {
    const time = new Date(report.time).getTime() / 1000;
    const [times] = this.data;
    // The clock may have been put back: a line does not run backwards.
    if (times.length && time <= times[times.length - 1]) this.data = this.data.map(() => []);
    // Nothing is known of the time between.
    if (times.length && time - times[times.length - 1] > 5) {
      this.data.forEach((row, at) => row.push(at === 0 ? times[times.length - 1] + 1 : null));
    }
    this.data[0].push(time);
    values(report).forEach((value, at) => this.data[at + 1].push(value));
    if (this.data[0].length > KEPT) this.data.forEach(row => row.shift());
    this.draw();
  }

  draw() {
    if (!this.plot) return;
    const shown = this.window();
    this.plot.setData(shown);
    this.offer(shown);
    if (shown[0].length > 10 && Date.now() - this.told < 10000) return;
    this.told = Date.now();
    const seconds = shown[0].length ? Math.round(shown[0][shown[0].length - 1] - shown[0][0]) : 0;
    const parts = LINES.map(([, label], at) => {
      const known = shown[at + 1].filter(value => value !== null);
      const most = Math.max(0, ...known);
      return most > 0 || at === 0 ? `${label}: now ${pps(known[known.length - 1] ?? 0)}, at most ${pps(most)}` : null;
    });
    if (seconds < 1) return;
    say(this.text, `The last ${seconds} seconds. ${parts.filter(Boolean).join('; ')}.`);
  }
}
