// Tables whose rows stay the same elements while what is in them changes, so that whoever is on one
// of their buttons stays there.

/** An element with text in it. */
export function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** Sets text only where it differs: nothing is told twice. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * A table. A column has a `title`, a `cell` that makes text of an item or, with `build`, elements once
 * for each row; `sort` makes it sortable by what it returns.
 */
export class Table {
  constructor(table, label, columns, keyOf) {
    this.table = table;
    this.columns = columns;
    this.keyOf = keyOf;
    this.rows = new Map();
    this.items = [];
    this.order = null;
    table.append(element('caption', label, 'hidden'));
    const head = table.createTHead().insertRow();
    this.heads = columns.map((column, place) => this.head(head, column, place));
    this.body = table.createTBody();
  }

  head(row, column, place) {
    const head = element('th', undefined, column.number ? 'number' : undefined);
    head.scope = 'col';
    if (column.sort) {
      const button = element('button', column.title);
      button.type = 'button';
      button.addEventListener('click', () => this.sortBy(place));
      head.append(button);
      head.setAttribute('aria-sort', 'none');
    } else {
      head.textContent = column.title;
    }
    row.append(head);
    return head;
  }

  sortBy(place) {
    const first = this.columns[place].number ? -1 : 1;
    const again = this.order?.place === place;
    this.order = { place, sign: again ? -this.order.sign : first };
    this.heads.forEach((head, at) => {
      if (!this.columns[at].sort) return;
      const sorted = at !== place ? 'none' : this.order.sign > 0 ? 'ascending' : 'descending';
      head.setAttribute('aria-sort', sorted);
    });
    this.update(this.items);
  }

  sorted(items) {
    if (!this.order) return items;
    const { place, sign } = this.order;
    const by = this.columns[place].sort;
    return [...items].sort((one, other) => {
      const [a, b] = [by(one), by(other)];
      return sign * (a < b ? -1 : a > b ? 1 : 0);
    });
  }

  row(item) {
    const row = element('tr');
    row.cells_ = this.columns.map(column => {
      const cell = element(column.header ? 'th' : 'td', undefined, [column.number ? 'number' : '', column.wrap ? 'wrap' : ''].join(' ').trim());
      if (column.header) cell.scope = 'row';
      if (column.build) cell.append(...column.build(() => row.item));
      row.append(cell);
      return cell;
    });
    row.item = item;
    return row;
  }

  update(items) {
    this.items = items;
    const focused = document.activeElement;
    const seen = new Set();
    let next = this.body.firstElementChild;
    for (const item of this.sorted(items)) {
      const key = this.keyOf(item);
      if (seen.has(key)) continue;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = this.row(item);
        this.rows.set(key, row);
      }
      row.item = item;
      this.columns.forEach((column, place) => {
        if (column.cell) say(row.cells_[place], column.cell(item));
        if (column.refresh) column.refresh(row.cells_[place], item);
      });
      if (row === next) next = row.nextElementSibling;
      else this.body.insertBefore(row, next);
    }
    for (const [key, row] of this.rows) {
      if (seen.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    if (focused && focused !== document.activeElement && this.table.contains(focused)) focused.focus({ preventScroll: true });
    this.table.hidden = items.length === 0;
  }
}
