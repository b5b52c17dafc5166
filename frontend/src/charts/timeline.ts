import { clock } from "../format";
import type { Snapshot, Stall } from "../live/protocol";
import type { Stretch } from "../live/ranges";
import { SPAN, type SpanLog } from "../live/spans";
import { palette } from "./palette.svelte";
import { timeSplits } from "./scales";

/** Where things are on the canvas, in CSS pixels. */
export interface Layout {
  width: number;
  height: number;
  /** Room for the worker numbers. */
  left: number;
  lane: number;
  bar: number;
  workers: readonly number[];
}

export const AXIS = 22;
const GUTTER = 30;

/** Lanes shrink as workers grow in number; a lane is never thinner than can be pointed at. */
export function layoutOf(workers: readonly number[], width: number): Layout {
  const lane = workers.length <= 6 ? 26 : workers.length <= 16 ? 20 : workers.length <= 48 ? 13 : 9;
  return {
    width,
    height: Math.max(1, workers.length) * lane + AXIS,
    left: GUTTER,
    lane,
    bar: Math.max(6, lane - 7),
    workers,
  };
}

export interface Scene {
  spans: SpanLog;
  stalls: readonly Stall[];
  /** For batches still in hand; null when the stretch does not reach the present. */
  snapshot: Snapshot | null;
  stretch: Stretch;
}

/** A batch's time in a worker, as drawn. */
export interface SpanAt {
  worker: number;
  batch: number;
  start: number;
  fetched: number;
  collated: number;
  sent: number;
  yielded: number;
}

/** Seconds by which a batch that was sent earlier may be logged later. */
const DISORDER = 5;

/**
 * Visit the spans that reach into a stretch, newest first. They are logged about in the order in which they were
 * sent, so one that was sent well before the stretch ends the search.
 */
export function visit(spans: SpanLog, { from, to }: Stretch, each: (row: number) => void): void {
  const { ring } = spans;
  for (let row = ring.length - 1; row >= 0; row--) {
    const sent = ring.get(SPAN.sent, row);
    if (sent < from - DISORDER) return;
    if (sent >= from && ring.get(SPAN.start, row) <= to) each(row);
  }
}

export function spanAt(spans: SpanLog, row: number): SpanAt {
  const { ring } = spans;
  return {
    worker: ring.get(SPAN.worker, row),
    batch: ring.get(SPAN.batch, row),
    start: ring.get(SPAN.start, row),
    fetched: ring.get(SPAN.fetched, row),
    collated: ring.get(SPAN.collated, row),
    sent: ring.get(SPAN.sent, row),
    yielded: ring.get(SPAN.yielded, row),
  };
}

/** The span under a point; null where there is none. */
export function hit(scene: Scene, layout: Layout, x: number, y: number): SpanAt | null {
  const worker = layout.workers[Math.floor(y / layout.lane)];
  if (worker === undefined || x < layout.left) return null;
  const at = toTime(scene.stretch, layout, x);
  let found: SpanAt | null = null;
  visit(scene.spans, scene.stretch, (row) => {
    if (found !== null || scene.spans.ring.get(SPAN.worker, row) !== worker) return;
    const span = spanAt(scene.spans, row);
    if (at >= span.start && at <= span.sent) found = span;
  });
  return found;
}

export function toTime({ from, to }: Stretch, layout: Layout, x: number): number {
  return from + ((x - layout.left) / (layout.width - layout.left)) * (to - from);
}

function toX({ from, to }: Stretch, layout: Layout, at: number): number {
  return layout.left + ((at - from) / (to - from)) * (layout.width - layout.left);
}

/** Draw everything once. Rectangles are collected by colour, because changing the fill costs more than filling. */
export function paint(context: CanvasRenderingContext2D, scene: Scene, layout: Layout, ratio: number): void {
  const { stretch, spans, stalls, snapshot } = scene;
  const { width, height, left, lane, bar, workers } = layout;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const laneOf = new Map(workers.map((worker, place) => [worker, place]));
  const x = (at: number) => toX(stretch, layout, at);
  const bottom = height - AXIS;

  const culprits = new Set<number>();
  context.fillStyle = palette.faded("reorder_stall", 0.16);
  for (const stall of stalls) {
    const end = stall.at + stall.us / 1e6;
    if (end < stretch.from || stall.at > stretch.to) continue;
    culprits.add(stall.batch);
    const from = Math.max(left, x(stall.at));
    context.fillRect(from, 0, Math.max(1, x(end) - from), bottom);
  }

  context.fillStyle = palette.of("line");
  for (let place = 1; place < workers.length; place++) context.fillRect(left, place * lane - 0.5, width - left, 1);

  const boxes: Record<"fetch" | "collate" | "send" | "reorder_stall", number[]> = {
    fetch: [],
    collate: [],
    send: [],
    reorder_stall: [],
  };
  visit(spans, stretch, (row) => {
    const span = spanAt(spans, row);
    const place = laneOf.get(span.worker);
    if (place === undefined) return;
    const top = place * lane + (lane - bar) / 2;
    const phase = (kind: keyof typeof boxes, from: number, to: number) => {
      if (Number.isNaN(from) || Number.isNaN(to) || to < stretch.from) return;
      const start = Math.max(left, x(from));
      boxes[kind].push(start, top, Math.max(0.75, x(to) - start));
    };
    phase(culprits.has(span.batch) ? "reorder_stall" : "fetch", span.start, span.fetched);
    phase("collate", span.fetched, span.collated);
    phase("send", span.collated, span.sent);
  });
  for (const kind of ["fetch", "reorder_stall", "collate", "send"] as const) {
    context.fillStyle = palette.of(kind);
    const list = boxes[kind];
    for (let at = 0; at < list.length; at += 3) {
      context.fillRect(list[at] as number, list[at + 1] as number, Math.max(0.5, (list[at + 2] as number) - 0.75), bar);
    }
  }

  if (boxes.fetch.length + boxes.reorder_stall.length === 0) {
    context.font = "13px Inter, system-ui, sans-serif";
    context.fillStyle = palette.of("dim");
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText("No batch was finished in this stretch.", (left + width) / 2, bottom / 2);
  }
  if (snapshot !== null) paintInHand(context, snapshot, scene, layout, laneOf);
  paintAxis(context, stretch, layout);
}

/** Batches that workers still have in hand: paler, open to the right, from when the worker took them up. */
function paintInHand(
  context: CanvasRenderingContext2D,
  snapshot: Snapshot,
  { stretch }: Scene,
  layout: Layout,
  laneOf: ReadonlyMap<number, number>,
): void {
  const { lane, bar, left } = layout;
  const end = toX(stretch, layout, Math.min(snapshot.at, stretch.to));
  for (const worker of snapshot.workers) {
    const place = laneOf.get(worker.id);
    if (place === undefined || (worker.state !== "fetching" && worker.state !== "collating")) continue;
    const start = Math.max(left, toX(stretch, layout, snapshot.at - worker.state_ms / 1e3));
    if (end - start < 1) continue;
    context.fillStyle = palette.faded(worker.state === "fetching" ? "fetch" : "collate", 0.45);
    context.fillRect(start, place * lane + (lane - bar) / 2, end - start, bar);
  }
}

function paintAxis(context: CanvasRenderingContext2D, stretch: Stretch, layout: Layout): void {
  const { width, height, left, lane, workers } = layout;
  context.font = "11px Inter, system-ui, sans-serif";
  context.fillStyle = palette.of("dim");
  context.textBaseline = "middle";
  context.textAlign = "left";
  const every = lane >= 13 ? 1 : 4;
  workers.forEach((worker, place) => {
    if (place % every === 0) context.fillText(String(worker), 2, place * lane + lane / 2);
  });
  context.textBaseline = "bottom";
  context.textAlign = "center";
  const span = stretch.to - stretch.from;
  const fine = span < 4;
  const ticks = fine
    ? subsecond(stretch, Math.max(2, Math.floor((width - left) / 110)))
    : timeSplits(stretch.from, stretch.to, Math.max(2, Math.floor((width - left) / 110)));
  for (const at of ticks) {
    const x = toX(stretch, layout, at);
    if (x < left + 28 || x > width - 28) continue;
    const tenths = fine ? `.${Math.round((at % 1) * 10) % 10}` : "";
    context.fillText(`${clock(at, at)}${tenths}`, x, height - 2);
  }
}

function subsecond({ from, to }: Stretch, wanted: number): number[] {
  const step = [0.1, 0.2, 0.5, 1].find((each) => (to - from) / each <= wanted) ?? 1;
  const result: number[] = [];
  for (let tick = Math.ceil(from / step); tick * step <= to; tick++) result.push(tick * step);
  return result;
}
