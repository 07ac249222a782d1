// The page: asks once for what was before, then shows what the daemon tells each second.

import { changes, history } from './changes.js';
import { Chart } from './chart.js';
import { bits, left, moment, pps, size, source, whole } from './format.js';
import { change, follow, get } from './live.js';
import { peers } from './peers.js';
import { offenders } from './sources.js';
import { Table, element, say } from './tables.js';

const by = id => document.getElementById(id);

/** A verdict is spoken when its kind changes, and otherwise this often, ms. */
const SPOKEN = 15000;

/** How often the list of changes is asked for, ms. */
const CHANGES = 5000;

/** How often the hosts of the cluster are asked how they are, ms. */
const PEERS = 5000;

let spoken = { level: '', at: 0 };

function verdict({ level, text }) {
  by('verdict').dataset.level = level;
  say(by('verdict-text'), text);
  if (level !== spoken.level || Date.now() - spoken.at > SPOKEN) {
    say(by('verdict-spoken'), text);
    spoken = { level, at: Date.now() };
  }
}

function warnings(all) {
  const list = by('warnings');
  if (list.childElementCount === all.length && all.every((text, at) => list.children[at].textContent === text)) return;
  list.replaceChildren(...all.map(text => element('li', text)));
}

function now(report) {
  say(by('passed'), pps(report.passed.pps));
  say(by('passed-bits'), bits(report.passed.bps));
  say(by('dropped'), pps(report.dropped.pps));
  say(by('dropped-bits'), bits(report.dropped.bps));
  say(by('tracked'), whole(report.tracked));
  const { distinct, cost } = report;
  say(by('distinct'), distinct ? `about ${whole(Math.round(distinct.sources))}` : '–');
  say(by('distinct-error'), distinct ? `± ${(100 * distinct.standard_error).toFixed(1)} % in ${distinct.window_s.toFixed(2)} s` : 'not counted');
  by('cost-tile').hidden = cost.ns_per_packet === null;
  if (cost.ns_per_packet !== null) say(by('cost'), `${cost.ns_per_packet.toFixed(0)} ns per packet`);
}

function health(report) {
  const { sketch, table } = report;
  const share = (part, all) => `${(100 * part / Math.max(1, all)).toFixed(1)} %`;
  const lines = [
    ['State', report.state],
    ['Interfaces', report.interfaces.map(([name, mode]) => `${name} (${mode})`).join(', ') || 'none'],
    ['Buckets taken', `${whole(report.tracked)} of ${whole(table.capacity)} (${share(report.tracked, table.capacity)})`],
    ['Buckets busy', `${whole(table.busy)} (${share(table.busy, table.capacity)})`],
    ['Sets full', `${whole(table.full_sets)} of ${whole(table.sets)}`],
    ['Table', size(table.memory_bytes)],
    ['Sketch', `${sketch.depth} × ${whole(sketch.width)} cells, ${size(sketch.memory_bytes)}`],
    ['Sketch noise', `${report.noise.toFixed(2)} packets per cell in ${sketch.window_ms.toFixed(0)} ms`],
    ['Sketch error', `ε ${sketch.epsilon.toExponential(2)}, δ ${sketch.delta.toPrecision(2)}`],
    ...(report.cost.ns_per_packet === null ? [['Cost of a packet', `not measured: ${report.cost.hint}`]] : []),
  ];
  const list = by('health');
  if (list.childElementCount !== 2 * lines.length) {
    list.replaceChildren(...lines.flatMap(([name]) => [element('dt', name), element('dd')]));
  }
  lines.forEach(([, text], at) => say(list.children[2 * at + 1], text));
}

function tables(admin) {
  const target = item => String(item.target);
  const remove = (label, run) => ({
    title: '',
    build: item => {
      const button = element('button', label);
      button.type = 'button';
      button.addEventListener('click', () => run(item()));
      return [button];
    },
    refresh: (cell, item) => {
      const [button] = cell.children;
      button.setAttribute('aria-label', `${label}: ${source(item.target)}`);
      button.hidden = item.origin === 'file';
    },
  });
  const limits = new Table(by('limits'), 'Limits', [
    { title: 'For', header: true, cell: item => source(item.target), sort: target },
    { title: 'Rate', number: true, cell: item => item.rate + (item.also ? ` and ${item.also.rate}` : ''), sort: item => item.rate_per_second },
    { title: 'Burst', cell: item => item.algorithm ?? item.burst },
    { title: 'From', cell: item => item.origin + (item.enforce ? '' : ', not enforced') },
    ...(admin ? [remove('Remove', item => admin.unset(target(item)))] : []),
  ], target);
  const denied = new Table(by('denied'), 'Bans and denied sources', [
    { title: 'Source', header: true, cell: item => source(item.target), sort: target },
    { title: 'Why', wrap: true, cell: item => [item.ban ? 'banned' : '', item.reason ?? ''].filter(Boolean).join(': ') },
    { title: 'Since', cell: item => moment(item.added), sort: item => item.added },
    { title: 'Ends', cell: item => (item.expires ? left(item.expires) || 'now' : 'never'), sort: item => item.expires ?? '~' },
    ...(admin ? [remove('Remove', item => admin.allow(source(item.target)))] : []),
  ], target);
  return { limits, denied };
}

/** Who has lost packets or, where nobody has, who sends most. */
function sources(table, { offenders, heaviest }) {
  const all = offenders.length ? offenders : heaviest;
  const title = all === offenders || !all.length ? 'Top offenders' : 'Heaviest sources';
  say(by('offenders-title'), title);
  say(table.table.caption, title);
  table.update(all);
  by('offenders-none').hidden = all.length > 0;
}

/** What changes something, for who may do so. */
function administration() {
  const done = text => say(by('done'), text);
  const ask = async (what, method, path, body) => {
    const wrong = await change(method, path, body);
    done(wrong ? `${what} failed: ${wrong}` : `${what}: done.`);
  };
  const admin = {
    limit: (target, rate) => ask(`Limit ${rate} for ${target}`, 'PUT', '/v1/limits', { target, rate }),
    unset: target => ask(`Remove the limit for ${target}`, 'DELETE', `/v1/limits?${new URLSearchParams({ target })}`),
    deny: (target, seconds) => ask(`Deny ${target}`, 'POST', `/v1/lists/deny?${new URLSearchParams({ ttl_seconds: seconds, reason: 'dashboard' })}`, target),
    allow: target => ask(`Remove ${target} from the deny list`, 'POST', '/v1/lists/deny/remove', target),
  };
  const submit = (id, run) => by(id).addEventListener('submit', event => {
    event.preventDefault();
    run(new FormData(event.target));
  });
  submit('set-limit', data => admin.limit(data.get('target').trim(), data.get('rate').trim()));
  submit('add-deny', data => admin.deny(data.get('target').trim(), data.get('ttl')));
  return admin;
}

async function start() {
  const session = await get('/v1/session') ?? {};
  by('sign-in').hidden = !session.can_become_admin;
  by('sign-out').hidden = !session.signed_in;
  by('admin').hidden = !session.admin;
  const admin = session.admin ? administration() : null;
  const chart = new Chart(by('chart'), by('legend'), by('chart-text'));
  const top = offenders(by('offenders'), text => say(by('done'), text), admin);
  const { limits, denied } = tables(admin);
  for (const table of [top, limits, denied]) table.update([]);
  const recent = changes(by('changes'), by('changes-none'));
  if (session.changes) {
    recent();
    setInterval(recent, CHANGES);
  }
  if ((await get('/v1/status'))?.cluster) {
    const hosts = peers(by('peers'), by('peers-note'));
    by('cluster').hidden = false;
    hosts();
    // Nobody is asked while nobody looks.
    setInterval(() => document.hidden || hosts(), PEERS);
  }
  if (session.history) history().then(rows => rows.length && chart.before(rows));
  follow(report => {
    verdict(report.verdict);
    warnings(report.warnings);
    now(report);
    // The first second has nothing to compare with.
    if (report.seconds > 0) chart.add(report);
    sources(top, report);
    limits.update(report.limits.shown);
    by('limits-none').hidden = report.limits.total > 0;
    const { total, shown } = report.limits;
    say(by('limits-count'), total > shown.length ? `${whole(shown.length)} of ${whole(total)}; all: limiter limit list` : '');
    denied.update(report.denied.shown);
    by('denied-none').hidden = report.denied.shown.length > 0;
    health(report);
    const host = [report.host, report.instance].filter(Boolean).join(' ');
    say(by('host'), host);
    document.title = host ? `${host}: limiter` : 'limiter';
    say(by('about'), `version ${report.version}`);
  }, (state, text) => {
    say(by('connection'), text);
    if (state === 'lost') by('verdict').dataset.level = 'lost';
  });
}

start();
