// The hosts of the cluster, as the host that serves this page knows them.

import { short, whole } from './format.js';
import { get } from './live.js';
import { Table, say } from './tables.js';

/** Hosts that are shown: those that something is wrong with first. */
const MOST = 50;

const STATES = ['gone', 'silent', 'suspect', 'this', 'alive'];

const ms = value => `${short(value).trim()} ms`;

const percent = part => `${(100 * part).toFixed(2)} %`;

/** What a host says of itself, or a dash where it says nothing. */
const of = tell => item => (item.details ? tell(item.details) : '–');

function state(item) {
  return item.gone_seconds === undefined ? item.state : `gone for ${whole(Math.round(item.gone_seconds))} s`;
}

function clock(item) {
  const { clock: told } = item;
  return told ? `${told.ahead_ms > 0 ? '+' : ''}${told.ahead_ms.toFixed(1)} ± ${told.error_ms.toFixed(1)} ms` : '–';
}

const refused = details => details.refused.reduce((sum, one) => sum + one.packets, 0);

function ordered(hosts) {
  const rank = host => STATES.indexOf(host.state);
  return [...hosts].sort((one, other) => rank(one) - rank(other) || (one.host < other.host ? -1 : 1));
}

/** The table of hosts; what is returned asks the daemon for them. */
export function peers(table, note) {
  const made = new Table(table, 'Hosts of the cluster', [
    { title: 'Host', header: true, cell: item => item.host, sort: item => item.host },
    { title: 'State', cell: state, sort: item => STATES.indexOf(item.state) },
    { title: 'Address', cell: item => item.address },
    { title: 'Limits', cell: of(details => (details.limits_same ? 'same' : 'differ')) },
    { title: 'Home right', number: true, cell: of(details => percent(details.home)), sort: item => item.details?.home ?? -1 },
    { title: 'Shared sources', number: true, cell: of(details => whole(details.keys)), sort: item => item.details?.keys ?? -1 },
    { title: 'Lag, 99 %', number: true, cell: of(details => (details.lag_ms ? ms(details.lag_ms.p99) : '–')), sort: item => item.details?.lag_ms?.p99 ?? -1 },
    { title: 'Clock ahead', cell: clock },
    { title: 'Refused', number: true, cell: of(details => whole(refused(details))), sort: item => (item.details ? refused(item.details) : -1) },
  ], item => item.id);
  made.update([]);
  return async () => {
    const told = await get('/v1/cluster/peers');
    if (!Array.isArray(told?.peers)) return;
    made.update(ordered(told.peers).slice(0, MOST));
    const words = [
      `${percent(told.home)} of each limit is with hosts that answer.`,
      told.limits_same ? '' : 'Hosts do not all know the same limits.',
      ...told.overage.map(one => `Limit for ${one.limit}: ${(100 * one.ratio).toFixed(1)} % used of what may be (${(100 * one.bound).toFixed(0)} %).`),
      told.peers.length > MOST ? `${MOST} of ${whole(told.peers.length)} hosts; all: limiter peers` : '',
    ];
    say(note, words.filter(Boolean).join(' '));
  };
}
