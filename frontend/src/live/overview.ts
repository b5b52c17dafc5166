import { workersKnown } from "./known";
import type { LoaderRow, Overview } from "./protocol";

/** Where a run stands in the overview. */
export type Place = LoaderRow["place"];

/** What a rank waits for. */
export type WaitingKind = NonNullable<LoaderRow["waits_for"]>;

/** What a person calls the state: the connection's if that is broken, else the loader's own. */
export type RowState = "running" | "paused" | "idle" | "finished" | "failed" | "stale" | "lost";

export function stateOf(row: Pick<LoaderRow, "presence" | "state">): RowState {
  if (row.state === "failed") return "failed";
  if (row.presence === "finished" || row.state === "closed") return "finished";
  if (row.presence === "stale" || row.presence === "lost") return row.presence;
  return row.state;
}

export const ROW_STATES: readonly RowState[] = ["running", "paused", "idle", "finished", "failed", "stale", "lost"];

export function isLive(row: LoaderRow): boolean {
  const state = stateOf(row);
  return state === "running" || state === "paused" || state === "idle";
}

/** Rows after a message. A complete overview replaces all, so what it lacks is gone. */
export function applied(rows: ReadonlyMap<string, LoaderRow>, message: Pick<Overview, "rows" | "removed" | "complete">): Map<string, LoaderRow> {
  const next = message.complete ? new Map<string, LoaderRow>() : new Map(rows);
  for (const row of message.rows) next.set(row.id, row);
  for (const id of message.removed) next.delete(id);
  return next;
}

/** Share of the time a loader kept its training waiting, over the last 10 s; NaN if it does not run. */
export function waitingOf(row: LoaderRow): number {
  return row.waiting ?? Number.NaN;
}

export const SORT_KEYS = ["name", "state", "workers", "rate", "waiting", "seen"] as const;
export type SortKey = (typeof SORT_KEYS)[number];

export interface Run {
  run: string;
  /** The run's loaders, in the order asked for. */
  rows: LoaderRow[];
  /** Loaders of the same name on many ranks, folded. */
  grids: RankGrid[];
  /** Rows that are not in a grid. */
  loose: LoaderRow[];
  live: number;
  batches: number;
  place: Place;
}

export interface RankGrid {
  name: string;
  /** In the order asked for by the grid's reader: see `ordered`. */
  rows: LoaderRow[];
  worldSize: number;
}

/** From so many ranks on, a grid says more than a list. */
export const FOLD_FROM = 5;

export function matches(row: LoaderRow, filter: string, states: ReadonlySet<RowState>): boolean {
  if (states.size > 0 && !states.has(stateOf(row))) return false;
  const { run, name, rank, host } = row.identity;
  const text = `${run} ${name} rank ${rank} ${host}`.toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function value(row: LoaderRow, key: SortKey): number | string {
  switch (key) {
    case "name":
      return row.identity.name;
    case "state":
      return ROW_STATES.indexOf(stateOf(row));
    case "workers":
      return workersKnown(row) ? row.workers : Number.NaN;
    case "rate":
      return row.rates.batches;
    case "waiting":
      return waitingOf(row);
    case "seen":
      return row.seen;
  }
}

export function compare(a: LoaderRow, b: LoaderRow, key: SortKey, descending: boolean): number {
  const left = value(a, key);
  const right = value(b, key);
  const sign = descending ? -1 : 1;
  const tie = a.identity.name.localeCompare(b.identity.name) || a.identity.rank - b.identity.rank;
  if (typeof left === "string" || typeof right === "string") {
    return sign * String(left).localeCompare(String(right)) || a.identity.rank - b.identity.rank;
  }
  if (Number.isNaN(left) || Number.isNaN(right)) return Number(Number.isNaN(left)) - Number(Number.isNaN(right)) || tie;
  return sign * (left - right) || tie;
}

/** Rows by run, pinned runs first. By name the runs keep the newest first; by a figure, the run with the extreme one leads. */
export function grouped(rows: Iterable<LoaderRow>, key: SortKey, descending: boolean): Run[] {
  const byRun = new Map<string, LoaderRow[]>();
  for (const row of rows) {
    const list = byRun.get(row.identity.run);
    if (list === undefined) byRun.set(row.identity.run, [row]);
    else list.push(row);
  }
  const runs = [...byRun].map(([run, list]) => runOf(run, list, key, descending));
  runs.sort((a, b) => {
    const pinned = Number(b.place === "pinned") - Number(a.place === "pinned");
    if (pinned !== 0) return pinned;
    if (key === "name") return Number(b.live > 0) - Number(a.live > 0) || newest(b) - newest(a) || (a.run < b.run ? -1 : 1);
    const [left, right] = [a.rows[0], b.rows[0]];
    if (left === undefined || right === undefined) return 0;
    return compare(left, right, key, descending) || (a.run < b.run ? -1 : 1);
  });
  return runs;
}

function newest(run: Run): number {
  return Math.max(...run.rows.map(({ started }) => started));
}

function runOf(run: string, list: LoaderRow[], key: SortKey, descending: boolean): Run {
  const rows = list.sort((a, b) => compare(a, b, key, descending));
  const byName = new Map<string, LoaderRow[]>();
  for (const row of rows) byName.set(row.identity.name, [...(byName.get(row.identity.name) ?? []), row]);
  const grids: RankGrid[] = [];
  const loose: LoaderRow[] = [];
  for (const [name, same] of byName) {
    if (same.length >= FOLD_FROM) grids.push(gridOf(name, same));
    else loose.push(...same);
  }
  return {
    run,
    rows,
    grids: grids.sort((a, b) => (a.name < b.name ? -1 : 1)),
    loose,
    live: rows.filter(isLive).length,
    batches: rows.reduce((sum, row) => sum + (isLive(row) ? row.rates.batches : 0), 0),
    place: rows[0]?.place ?? "shown",
  };
}

function gridOf(name: string, same: LoaderRow[]): RankGrid {
  const rows = [...same].sort((a, b) => a.identity.rank - b.identity.rank);
  return { name, rows, worldSize: Math.max(...rows.map(({ identity }) => identity.world_size)) };
}

/** What ranks wait for, with how many do, the kind that one waits longest for first; who waits for nothing is left out. */
export function waits(rows: readonly LoaderRow[]): [WaitingKind, number][] {
  const found = new Map<WaitingKind, { number: number; longest: number }>();
  for (const row of rows) {
    const kind = row.waits_for;
    if (kind === null) continue;
    const { number, longest } = found.get(kind) ?? { number: 0, longest: 0 };
    found.set(kind, { number: number + 1, longest: Math.max(longest, waitingOf(row)) });
  }
  return [...found].sort((a, b) => b[1].longest - a[1].longest).map(([kind, { number }]) => [kind, number]);
}

export type GridOrder = "rank" | "waiting";

/** Ranks by number; or those first that are broken, then by what they wait for, the longest first, then the rest. */
export function ordered(rows: readonly LoaderRow[], order: GridOrder): LoaderRow[] {
  const byRank = [...rows].sort((a, b) => a.identity.rank - b.identity.rank);
  if (order === "rank") return byRank;
  const kinds = waits(rows).map(([kind]) => kind);
  const place = (row: LoaderRow): number => {
    const state = stateOf(row);
    if (state === "failed" || state === "lost" || state === "stale") return -1;
    const kind = row.waits_for;
    if (kind !== null) return kinds.indexOf(kind);
    return state === "running" ? kinds.length : kinds.length + 1;
  };
  const keyed = byRank.map((row) => ({ row, place: place(row), waiting: waitingOf(row) || 0 }));
  return keyed.sort((a, b) => a.place - b.place || b.waiting - a.waiting).map(({ row }) => row);
}
