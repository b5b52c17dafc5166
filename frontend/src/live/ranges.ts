/** The time ranges of the charts, and which stretch of time a chart shows. */

export const RANGES = [
  { id: "1m", label: "1 min", seconds: 60 },
  { id: "10m", label: "10 min", seconds: 600 },
  { id: "1h", label: "1 h", seconds: 3600 },
  { id: "all", label: "All", seconds: Infinity },
] as const;

export type RangeId = (typeof RANGES)[number]["id"];

/** What a chart is asked for: the newest stretch, or a fixed one (frozen or zoomed into). */
export interface Stretch {
  from: number;
  to: number;
}

/** Points a chart of usual width can show; more only costs time. */
export const POINTS = 600;

export function secondsOf(range: RangeId): number {
  return RANGES.find((each) => each.id === range)?.seconds ?? 60;
}

/** Where a chart that follows begins and ends. Before a loader existed there is nothing to show. */
export function following(range: RangeId, now: number, started: number): Stretch {
  const seconds = secondsOf(range);
  if (seconds === Infinity) return { from: Math.min(started, now - 60), to: now };
  return { from: now - seconds, to: now };
}

/**
 * Seconds a bucket should span so that a stretch fits into `POINTS`; 0 if single samples do. A second at least:
 * five samples a second are mostly noise, which a band shows better than a line.
 */
export function bucketFor(seconds: number, interval: number): number {
  const step = niceStep(Math.max(1, seconds / POINTS));
  return interval >= step ? 0 : step;
}

/**
 * Points to ask the backend for. It answers from single samples only if at most three fall on a point, so short
 * stretches ask for a bit more than a third of their samples; the track folds what is finer than its buckets.
 */
export function pointsFor(seconds: number, step: number, interval: number): number {
  const samples = seconds / interval;
  const finest = samples <= 6000 ? samples / 2.5 : 0;
  return Math.min(5000, Math.ceil(Math.max(finest, step > 0 ? seconds / step : samples)) + 1);
}

const NICE = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400];

/** The next duration that divides clock time evenly. */
export function niceStep(seconds: number): number {
  return NICE.find((step) => step >= seconds) ?? 86_400;
}

/** A stretch narrowed or widened around a moment, never under a second. */
export function zoomed(stretch: Stretch, around: number, factor: number): Stretch {
  const span = Math.max(1, (stretch.to - stretch.from) * factor);
  const share = (around - stretch.from) / (stretch.to - stretch.from);
  const from = around - span * Math.min(1, Math.max(0, share));
  return { from, to: from + span };
}

export function moved(stretch: Stretch, share: number): Stretch {
  const by = (stretch.to - stretch.from) * share;
  return { from: stretch.from + by, to: stretch.to + by };
}

/**
 * Seconds between two drawings of a stretch that moves: once it moves by a third of a pixel, but at least once a
 * second, so that the newest value is never far behind.
 */
export function redrawEvery(seconds: number, width: number): number {
  return Math.min(1, seconds / Math.max(1, width) / 3);
}
