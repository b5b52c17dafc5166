/** Numbers as people read them: tabular, with a unit, never wider than they need to be. */

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 1284 → "1,284" */
export function count(value: number): string {
  return grouped.format(value);
}

/** Three significant figures at most, so that a figure keeps its width: 9.81, 61.4, 904, 12,889. */
export function figure(value: number): string {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return "–";
  if (size >= 99.95) return grouped.format(value);
  if (size >= 9.995) return value.toFixed(1);
  if (size === 0) return "0";
  return value.toFixed(2);
}

export interface Quantity {
  value: string;
  unit: string;
}

const BYTE_UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

/** Bytes in decimal units, as memory and network rates are usually quoted. */
export function bytes(value: number): Quantity {
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 999.5 && unit < BYTE_UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return { value: unit === 0 ? grouped.format(size) : figure(size), unit: BYTE_UNITS[unit] ?? "" };
}

export function bytesText(value: number): string {
  const { value: number, unit } = bytes(value);
  return `${number} ${unit}`;
}

/** A share of 1 as whole per cent; what is there but rounds to nothing is "<1 %". */
export function percent(share: number): string {
  if (share > 0 && share < 0.005) return "<1 %";
  return `${Math.round(share * 100)} %`;
}

/** Whole per cents that add up to 100 (largest remainders), for parts of one whole. */
export function percents(shares: readonly number[]): number[] {
  const total = shares.reduce((sum, share) => sum + share, 0);
  if (total <= 0) return shares.map(() => 0);
  const exact = shares.map((share) => (share / total) * 100);
  const floors = exact.map(Math.floor);
  const missing = 100 - floors.reduce((sum, part) => sum + part, 0);
  const byRemainder = exact.map((part, place) => ({ place, rest: part - Math.floor(part) }));
  byRemainder.sort((a, b) => b.rest - a.rest);
  for (const { place } of byRemainder.slice(0, missing)) floors[place] = (floors[place] ?? 0) + 1;
  return floors;
}

/** A short duration given in microseconds: "840 µs", "12.4 ms", "1.35 s", "2 min 5 s". */
export function micros(us: number): string {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 999_500) return `${figure(us / 1000)} ms`;
  return duration(us / 1e6);
}

/** A duration given in seconds, in at most two units. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** How long ago, coarsely: for ages that tick. */
export function age(seconds: number): string {
  const past = Math.max(0, seconds);
  if (past < 10) return `${past.toFixed(1)} s`;
  if (past < 60) return `${Math.floor(past)} s`;
  if (past < 3600) return `${Math.floor(past / 60)} min`;
  if (past < 86_400) return `${Math.floor(past / 3600)} h`;
  return `${Math.floor(past / 86_400)} d`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dateFormat = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A moment as time of day, with the date if it was not today. */
export function clock(at: number, now: number = Date.now() / 1000): string {
  const moment = new Date(at * 1000);
  const time = clockFormat.format(moment);
  return moment.toDateString() === new Date(now * 1000).toDateString() ? time : `${dateFormat.format(moment)} ${time}`;
}

export function plural(number: number, one: string, many: string = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}
