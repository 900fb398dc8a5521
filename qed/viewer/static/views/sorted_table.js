import { createTable, sortByColumn } from "../table.js";

/**
 * Build a table whose order is kept in the URL (`sort`, `down`); `options` are those of `createTable`.
 *
 * Returns what `createTable` does.
 */
export function createSortedTable(context, options) {
  const { query } = context;
  let sort = query.sort ? { key: query.sort, down: query.down === "1" } : (options.sort ?? { key: "", down: false });
  let rows = options.rows ?? [];
  const order = () => sortByColumn(rows, options.columns, sort);
  const table = createTable({
    ...options, rows: order(), sort,
    onSort: (chosen) => {
      sort = chosen;
      context.setQuery({ sort: sort.key, down: sort.down ? "1" : null });
      table.setRows(order());
    },
  });
  return {
    ...table,
    setRows: (changed) => {
      rows = changed;
      table.setRows(order());
    },
  };
}
