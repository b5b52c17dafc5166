import { type Between, type History, type Rates, RatesFields } from "./protocol";
import { Ring } from "./ring";

export type RateKey = keyof Rates;

const WIDTH = RatesFields.length;
const PLACE = Object.fromEntries(RatesFields.map((key, place) => [key, place])) as Record<RateKey, number>;
/** Columns: time, then mean, low and high of every rate, then how many samples are in the bucket. */
const TIME = 0;
const MEAN = 1;
const LOW = MEAN + WIDTH;
const HIGH = LOW + WIDTH;
const WEIGHT = HIGH + WIDTH;
const COLUMNS = WEIGHT + 1;
/** Two samples closer than this are the same sample, heard twice. */
const SAME = 0.001;
/** A bucket from history does not say how many samples it holds; loaders usually send one every 0.2 s. */
const USUAL_INTERVAL = 0.2;
/** What nobody watches comes so many seconds apart at the most: that is no silence. */
const SLOWEST_PACE = 4;

/** The rates of one loader over time, each sample on its own (`step` 0) or in buckets of `step` seconds. */
export class Track {
  readonly step: number;
  readonly #ring: Ring;
  readonly #row = new Float64Array(COLUMNS);
  /** True once a bucket holds more than one sample: then low and high say more than the mean. */
  banded = false;
  /** The widest bucket that history brought, in seconds. */
  #coarsest = 0;

  constructor(step: number, capacity: number) {
    this.step = step;
    this.#ring = new Ring(COLUMNS, capacity);
  }

  get length(): number {
    return this.#ring.length;
  }

  get capacity(): number {
    return this.#ring.capacity;
  }

  get first(): number {
    return this.#ring.get(TIME, 0);
  }

  get last(): number {
    return this.#ring.last(TIME);
  }

  /** Take in a live sample. Samples come in order; one that is not newer than the last is a repetition. */
  push(at: number, rates: Rates, between?: Between): void {
    if (this.length > 0 && this.#bucket(at) === this.#bucket(this.last)) {
      if (this.step > 0) this.#fold(rates, between);
      return;
    }
    if (this.length > 0 && at < this.last) return;
    const row = this.#row;
    row[TIME] = this.step > 0 ? (this.#bucket(at) + 0.5) * this.step : at;
    for (let place = 0; place < WIDTH; place++) {
      const key = RatesFields[place] as RateKey;
      const value = rates[key];
      row[MEAN + place] = value;
      row[LOW + place] = Math.min(value, between?.low[key] ?? value);
      row[HIGH + place] = Math.max(value, between?.high[key] ?? value);
    }
    row[WEIGHT] = between?.looks ?? 1;
    if (between !== undefined) this.banded = true;
    this.#ring.push(row);
  }

  /** Take in what the backend remembers: it fills holes and the time before the page was opened. */
  merge(history: History): void {
    this.#coarsest = Math.max(this.#coarsest, history.step);
    const theirs = new Map<number, Float64Array>();
    for (let place = 0; place < history.at.length; place++) {
      const row = this.#fromHistory(history, place);
      const key = this.#identity(row[TIME] as number);
      const before = theirs.get(key);
      if (before === undefined) theirs.set(key, row);
      else if (this.step > 0) foldRows(before, row);
      if (history.step > 0 || before !== undefined || "batches" in history.low) this.banded = true;
    }
    for (let row = 0; row < this.length; row++) {
      const ours = Float64Array.from({ length: COLUMNS }, (_, column) => this.#ring.get(column, row));
      const key = this.#identity(ours[TIME] as number);
      const other = theirs.get(key);
      // The same bucket seen from both sides: the one that saw more of it counts.
      if (other === undefined || (other[WEIGHT] as number) <= (ours[WEIGHT] as number)) theirs.set(key, ours);
    }
    const rows = [...theirs.values()].sort((a, b) => (a[TIME] as number) - (b[TIME] as number));
    this.#ring.clear();
    for (const row of rows.slice(-this.capacity)) this.#ring.push(row);
  }

  #fromHistory(history: History, place: number): Float64Array {
    const row = new Float64Array(COLUMNS);
    const at = history.at[place] as number;
    row[TIME] = this.step > 0 ? (this.#bucket(at) + 0.5) * this.step : at;
    row[WEIGHT] = Math.max(1, history.step / USUAL_INTERVAL);
    for (let field = 0; field < WIDTH; field++) {
      const name = RatesFields[field] as RateKey;
      const mean = history.mean[name]?.[place] ?? 0;
      row[MEAN + field] = mean;
      row[LOW + field] = history.low[name]?.[place] ?? mean;
      row[HIGH + field] = history.high[name]?.[place] ?? mean;
    }
    return row;
  }

  /** A copy of the stretch between two moments, so that a frozen chart keeps what the ring forgets. */
  slice(from: number, to: number): Track {
    const [start, end] = this.rows(from, to);
    const copy = new Track(this.step, Math.max(1, end - start));
    copy.banded = this.banded;
    copy.#coarsest = this.#coarsest;
    for (let row = start; row < end; row++) {
      copy.#ring.push(Float64Array.from({ length: COLUMNS }, (_, column) => this.#ring.get(column, row)));
    }
    return copy;
  }

  /** Rows [start, end) that a chart from `from` to `to` needs: one more on either side, so lines reach the edge. */
  rows(from: number, to: number): [number, number] {
    const start = Math.max(0, this.#ring.lowerBound(TIME, from) - 1);
    const end = Math.min(this.length, this.#ring.lowerBound(TIME, to) + 1);
    return [start, Math.max(start, end)];
  }

  times(start: number, end: number): Float64Array {
    return this.#ring.view(TIME, start, end);
  }

  mean(key: RateKey, start: number, end: number): Float64Array {
    return this.#ring.view(MEAN + PLACE[key], start, end);
  }

  low(key: RateKey, start: number, end: number): Float64Array {
    return this.#ring.view(LOW + PLACE[key], start, end);
  }

  high(key: RateKey, start: number, end: number): Float64Array {
    return this.#ring.view(HIGH + PLACE[key], start, end);
  }

  latest(key: RateKey): number {
    return this.#ring.last(MEAN + PLACE[key]);
  }

  /** Mean of a rate between two moments; NaN without a sample. */
  average(key: RateKey, from: number, to: number): number {
    const start = this.#ring.lowerBound(TIME, from);
    const end = this.#ring.lowerBound(TIME, to);
    let sum = 0;
    let weight = 0;
    for (let row = start; row < end; row++) {
      const each = this.#ring.get(WEIGHT, row);
      sum += this.#ring.get(MEAN + PLACE[key], row) * each;
      weight += each;
    }
    return weight > 0 ? sum / weight : Number.NaN;
  }

  /** A gap in a line is a silence longer than this. */
  get patience(): number {
    const step = Math.max(this.step, this.#coarsest);
    if (step > 0) return Math.max(2, step * 2.5);
    const rows = this.length;
    if (rows < 3) return Infinity;
    const recent = Math.min(rows - 1, 50);
    return Math.max(SLOWEST_PACE * 1.5, ((this.last - this.#ring.get(TIME, rows - 1 - recent)) / recent) * 4);
  }

  #bucket(at: number): number {
    return this.step > 0 ? Math.floor(at / this.step + 1e-9) : at;
  }

  #identity(time: number): number {
    return this.step > 0 ? this.#bucket(time) : Math.round(time / SAME);
  }

  #fold(rates: Rates, between?: Between): void {
    const row = this.length - 1;
    const weight = this.#ring.get(WEIGHT, row);
    const more = between?.looks ?? 1;
    for (let place = 0; place < WIDTH; place++) {
      const key = RatesFields[place] as RateKey;
      const value = rates[key];
      const mean = this.#ring.get(MEAN + place, row);
      const low = Math.min(value, between?.low[key] ?? value);
      const high = Math.max(value, between?.high[key] ?? value);
      this.#ring.set(MEAN + place, row, mean + ((value - mean) * more) / (weight + more));
      if (low < this.#ring.get(LOW + place, row)) this.#ring.set(LOW + place, row, low);
      if (high > this.#ring.get(HIGH + place, row)) this.#ring.set(HIGH + place, row, high);
    }
    this.#ring.set(WEIGHT, row, weight + more);
    this.banded = true;
  }
}

/** Take a second row of the same bucket into the first. */
function foldRows(into: Float64Array, row: Float64Array): void {
  const [have, more] = [into[WEIGHT] as number, row[WEIGHT] as number];
  for (let place = 0; place < WIDTH; place++) {
    const mean = into[MEAN + place] as number;
    into[MEAN + place] = mean + (((row[MEAN + place] as number) - mean) * more) / (have + more);
    into[LOW + place] = Math.min(into[LOW + place] as number, row[LOW + place] as number);
    into[HIGH + place] = Math.max(into[HIGH + place] as number, row[HIGH + place] as number);
  }
  into[WEIGHT] = have + more;
}
