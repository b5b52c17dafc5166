import type { CallTree, Phase } from "../live/profiles";

/** What of a profile is looked at. */
export interface Choice {
  clock: "wall" | "processor";
  /** null: all of them. */
  phase: Phase | null;
  worker: number | null;
  /** Show what libraries do inside; else a call into one is a single box. */
  libraries: boolean;
}

/** A function where it was called from: what is drawn as one rectangle. Times are in ms. */
export interface Box {
  name: string;
  file: string;
  /** Its most costly line. */
  line: number;
  user: boolean;
  /** Place of its caller among the boxes; -1: it was called first. */
  caller: number;
  depth: number;
  start: number;
  total: number;
  own: number;
  /** The same for the same way to it in another profile. */
  key: string;
}

export interface Flame {
  boxes: Box[];
  total: number;
  depth: number;
}

/** Put the nodes of a call tree together to boxes, side by side in the order in which they were first seen. */
export function layoutOf(tree: CallTree, { clock, phase, worker, libraries }: Choice): Flame {
  const own = tree.own(clock, phase, worker);
  const places = new Int32Array(own.length).fill(-1);
  const known = new Map<string, number>();
  const boxes: Box[] = [];
  const lines: Map<number, number>[] = [];
  const totals = Float64Array.from(own);
  for (let node = own.length - 1; node > 0; node--) {
    const caller = tree.callers[node] as number;
    totals[caller] = (totals[caller] ?? 0) + (totals[node] ?? 0);
  }
  for (let node = 1; node < own.length; node++) {
    const total = totals[node] ?? 0;
    if (total === 0) continue;
    const called = tree.called[node] as number;
    const described = tree.functions[called];
    const above = places[tree.callers[node] as number] as number;
    if (described === undefined) continue;
    const outer = above < 0 ? undefined : boxes[above];
    if (!libraries && outer !== undefined && !outer.user && !described.user) {
      places[node] = above;
      outer.own += own[node] ?? 0;
      continue;
    }
    const key = `${above} ${called}`;
    let place = known.get(key);
    if (place === undefined) {
      place = boxes.length;
      known.set(key, place);
      const { name, file, line, user } = described;
      boxes.push({
        name,
        file,
        line,
        user,
        caller: above,
        depth: outer === undefined ? 0 : outer.depth + 1,
        start: 0,
        total: 0,
        own: 0,
        key: `${outer?.key ?? ""}\n${name} ${file}`,
      });
      lines.push(new Map());
    }
    places[node] = place;
    const box = boxes[place] as Box;
    box.own += own[node] ?? 0;
    box.total += total;
    const seen = lines[place] as Map<number, number>;
    const line = tree.lines[node] as number;
    seen.set(line, (seen.get(line) ?? 0) + total);
  }
  boxes.forEach((box, place) => {
    let most = -1;
    for (const [line, ms] of lines[place] as Map<number, number>) {
      if (ms > most) [most, box.line] = [ms, line];
    }
  });
  arrange(boxes);
  return { boxes, total: totals[0] ?? 0, depth: boxes.reduce((deepest, box) => Math.max(deepest, box.depth + 1), 0) };
}

/** Callers come before what they call, so each finds its place behind those that its caller has placed already. */
function arrange(boxes: Box[]): void {
  const ends = new Float64Array(boxes.length);
  let end = 0;
  boxes.forEach((box, place) => {
    if (box.caller < 0) {
      box.start = end;
      end += box.total;
    } else {
      box.start = ends[box.caller] ?? 0;
      ends[box.caller] = box.start + box.total;
    }
    ends[place] = box.start;
  });
}

/** Box by key → its share of its profile's time: what another profile is compared with. */
export function sharesOf({ boxes, total }: Flame): Map<string, number> {
  return new Map(boxes.map(({ key, total: ms }) => [key, total > 0 ? ms / total : 0]));
}

/** Does a search for this text find the box? */
export function matches(box: Box, text: string): boolean {
  const wanted = text.toLowerCase();
  return box.name.toLowerCase().includes(wanted) || box.file.toLowerCase().includes(wanted);
}

/** The share of the time in boxes that a search finds, each moment once. */
export function found({ boxes, total }: Flame, text: string): number {
  const inside = new Uint8Array(boxes.length);
  let ms = 0;
  boxes.forEach((box, place) => {
    const covered = box.caller >= 0 && inside[box.caller] === 1;
    const hit = matches(box, text);
    inside[place] = covered || hit ? 1 : 0;
    if (hit && !covered) ms += box.total;
  });
  return total > 0 ? ms / total : 0;
}

/** The box at a point: `x` from 0 to 1 of the stretch that is shown, `row` from 0. */
export function boxAt(flame: Flame, shown: Shown, x: number, row: number): number {
  const at = shown.from + x * (shown.to - shown.from);
  return flame.boxes.findIndex(({ depth, start, total }) => depth === row && at >= start && at < start + total);
}

/** The stretch of time that fills the width, ms. */
export interface Shown {
  from: number;
  to: number;
}

/** All of it, or one box and what it calls. */
export function shownOf(flame: Flame, zoom: number): Shown {
  const box = flame.boxes[zoom];
  return box === undefined ? { from: 0, to: flame.total } : { from: box.start, to: box.start + box.total };
}

/** Where the arrow keys lead from a box. */
export function neighbour({ boxes }: Flame, place: number, step: "in" | "out" | "before" | "after"): number {
  const box = boxes[place];
  if (box === undefined) return boxes.length > 0 ? 0 : -1;
  if (step === "out") return box.caller < 0 ? place : box.caller;
  if (step === "in") {
    const inner = boxes.map((each, index) => ({ each, index })).filter(({ each }) => each.caller === place);
    const widest = inner.sort((a, b) => b.each.total - a.each.total)[0];
    return widest?.index ?? place;
  }
  const row = boxes.map((each, index) => ({ each, index })).filter(({ each }) => each.depth === box.depth);
  row.sort((a, b) => a.each.start - b.each.start);
  const at = row.findIndex(({ index }) => index === place) + (step === "after" ? 1 : -1);
  return row[at]?.index ?? place;
}

/** One row of the table behind the graph: a function, wherever it was called from. */
export interface FunctionRow {
  name: string;
  file: string;
  line: number;
  user: boolean;
  /** Shares of the whole, 0 to 1. */
  own: number;
  total: number;
}

/** Functions by own time, each counted once where it calls itself. */
export function rowsOf({ boxes, total }: Flame, most: number): FunctionRow[] {
  const rows = new Map<string, FunctionRow & { widest: number }>();
  if (total <= 0) return [];
  boxes.forEach((box) => {
    const key = `${box.name} ${box.file}`;
    let row = rows.get(key);
    if (row === undefined) {
      row = { name: box.name, file: box.file, line: box.line, user: box.user, own: 0, total: 0, widest: -1 };
      rows.set(key, row);
    }
    row.own += box.own / total;
    for (let outer = box.caller; ; outer = (boxes[outer] as Box).caller) {
      if (outer < 0) {
        row.total += box.total / total;
        break;
      }
      const around = boxes[outer] as Box;
      if (around.name === box.name && around.file === box.file) break;
    }
    if (box.total > row.widest) [row.widest, row.line] = [box.total, box.line];
  });
  return [...rows.values()].sort((a, b) => b.own - a.own || b.total - a.total).slice(0, most);
}
