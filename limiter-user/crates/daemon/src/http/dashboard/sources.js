// The top offenders or the heaviest sources, and what to do about them.

import { pps, source, whole } from './format.js';
import { Table, element } from './tables.js';

/** Puts text on the clipboard, also where that is only allowed to a page with TLS. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element('textarea', text, 'hidden');
    field.value = text;
    document.body.append(field);
    const before = document.activeElement;
    field.select();
    const copied = document.execCommand('copy');
    field.remove();
    before?.focus();
    return copied;
  }
}

function button(label, run) {
  const made = element('button', label);
  made.type = 'button';
  made.addEventListener('click', run);
  return made;
}

function copying(label, of, say) {
  const made = button(label, async () => {
    const text = of();
    if (!text) return;
    say(await copy(text) ? `Copied: ${text}` : `Copy this by hand: ${text}`);
  });
  made.commandOf = of;
  return made;
}

/** A button that changes something, where that is offered. */
function changing(label, isOffered, run) {
  const made = button(label, () => isOffered() && run());
  made.isOffered = isOffered;
  return made;
}

/** The table. `say` tells what was done; `admin` has what changes something, for who may do so. */
export function offenders(table, say, admin) {
  const commands = item => {
    const shown = [
      copying('Copy deny', () => item().commands.deny, say),
      copying('Copy limit', () => item().commands.limit, say),
      copying('Copy show', () => item().commands.show, say),
    ];
    if (!admin) return shown;
    return [
      changing('Deny 10 min', () => item().commands.deny, () => admin.deny(source(item().source), 600)),
      changing('Halve', () => item().commands.rate, () => admin.limit(source(item().source), item().commands.rate)),
      ...shown,
    ];
  };
  const refresh = (cell, item) => {
    for (const made of cell.children) {
      if (made.commandOf) {
        const text = made.commandOf();
        made.hidden = !text;
        if (text && made.title !== text) {
          made.title = text;
          made.setAttribute('aria-label', `${made.textContent}: ${text}`);
        }
      } else {
        made.setAttribute('aria-label', `${made.textContent}: ${source(item.source)}`);
        made.hidden = !made.isOffered();
      }
    }
  };
  const rate = item => item.limit ? item.limit.rate : 'none';
  return new Table(table, 'Top offenders', [
    { title: 'Source', header: true, cell: item => source(item.source), sort: item => item.source },
    { title: 'Class', cell: item => item.class ?? 'any' },
    { title: 'State', cell: item => item.state, sort: item => item.state },
    { title: 'Limit', cell: rate },
    { title: 'Sends', number: true, cell: item => pps(item.pps), sort: item => item.pps },
    { title: 'Dropped now', number: true, cell: item => pps(item.dropped_pps), sort: item => item.dropped_pps },
    { title: 'Dropped', number: true, cell: item => whole(item.dropped), sort: item => item.dropped },
    { title: 'Passed', number: true, cell: item => whole(item.passed), sort: item => item.passed },
    { title: 'Commands', build: commands, refresh },
  ], item => `${item.source} ${item.class ?? ''}`);
}
