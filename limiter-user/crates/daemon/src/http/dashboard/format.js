// Numbers and moments in words.

const STEPS = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];

/** Three digits and a prefix. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  for (const [step, prefix] of STEPS) {
    if (Math.abs(value) >= step) return `${(value / step).toPrecision(3)} ${prefix}`;
  }
  return value >= 100 || Number.isInteger(value) ? `${Math.round(value)} ` : `${value.toPrecision(2)} `;
}

/** Packets per second. */
export const pps = value => `${short(value)}pps`;

/** Bits per second. */
export const bits = value => `${short(value)}bit/s`;

/** A whole number with its thousands apart. */
export const whole = value => Number(value).toLocaleString('en');

/** A moment as the commands tell it, in UTC, without milliseconds; of today, the time of day. */
export function moment(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return String(text);
  const [date, time] = at.toISOString().replace(/\.\d+Z$/, 'Z').split('T');
  return new Date().toISOString().startsWith(date) ? time : `${date}T${time}`;
}

/** The time of day of a moment in seconds since 1970, in UTC. */
export const clock = seconds => new Date(1000 * seconds).toISOString().slice(11, 19);

/** How long from now until then, or nothing if that is over or unknown. */
export function left(text) {
  const seconds = Math.round((new Date(text).getTime() - Date.now()) / 1000);
  if (!(seconds > 0)) return '';
  if (seconds < 120) return `${seconds} s left`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min left` : `${Math.round(seconds / 3600)} h left`;
}

/** Memory. */
export function size(bytes) {
  const steps = [[2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']];
  const [step, unit] = steps.find(([step]) => bytes >= step) ?? [1, 'bytes'];
  return `${(bytes / step).toFixed(step === 1 ? 0 : 1)} ${unit}`;
}

/** A source as it is typed: without the length of a single IPv4 address. */
export const source = text => String(text).replace(/\/32$/, '');
