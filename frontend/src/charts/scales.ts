/** Where the axes begin and end, and what is written on them. */

/** A top that is a round number at or above the highest value: it changes seldom, so lines do not jump. */
export function roundTop(highest: number, least = 1): number {
  const value = Math.max(highest, least);
  if (!Number.isFinite(value)) return least;
  const magnitude = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) {
    if (value <= factor * magnitude * (1 + 1e-9)) return factor * magnitude;
  }
  return 10 * magnitude;
}

/** The highest value of some columns; NaN and infinities do not count. */
export function highest(columns: readonly ArrayLike<number>[]): number {
  let most = 0;
  for (const column of columns) {
    for (let row = 0; row < column.length; row++) {
      const value = column[row] as number;
      if (value > most && value !== Infinity) most = value;
    }
  }
  return most;
}

/** Bottom, middle and top: three lines are enough to read a small chart. */
export function splits(top: number): number[] {
  return [0, top / 2, top];
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];

/** Moments at round clock times, about `wanted` of them, for a time axis; in local time from an hour on. */
export function timeSplits(from: number, to: number, wanted: number, offset = 0): number[] {
  const span = to - from;
  const step = STEPS.find((each) => span / each <= wanted) ?? 604_800;
  const shift = step >= 3600 ? offset : 0;
  const result: number[] = [];
  for (let at = Math.ceil((from + shift) / step) * step - shift; at <= to; at += step) result.push(at);
  return result;
}

/** Stretches of silence between samples: no line is drawn across them. */
export function silences(times: ArrayLike<number>, patience: number): [number, number][] {
  const gaps: [number, number][] = [];
  for (let row = 1; row < times.length; row++) {
    const before = times[row - 1] as number;
    const after = times[row] as number;
    if (after - before > patience) gaps.push([before, after]);
  }
  return gaps;
}
