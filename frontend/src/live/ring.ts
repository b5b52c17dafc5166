/**
 * Parallel columns of numbers that keep the newest `capacity` rows.
 *
 * Rows lie contiguously in buffers of twice the capacity; when the end is reached, the newest half moves to the
 * front. So a view of any stretch is a plain `subarray`: charts read it without a copy, and a push costs on
 * average one extra write.
 */
export class Ring {
  readonly capacity: number;
  readonly #columns: Float64Array[];
  #start = 0;
  #end = 0;

  constructor(columns: number, capacity: number) {
    this.capacity = capacity;
    this.#columns = Array.from({ length: columns }, () => new Float64Array(capacity * 2));
  }

  get length(): number {
    return this.#end - this.#start;
  }

  push(row: ArrayLike<number>): void {
    if (this.#end === this.capacity * 2) this.#compact();
    for (let place = 0; place < this.#columns.length; place++) this.#column(place)[this.#end] = row[place] ?? 0;
    this.#end += 1;
    if (this.length > this.capacity) this.#start += 1;
  }

  /** The value of a column in a row, counted from the oldest; NaN outside. */
  get(column: number, row: number): number {
    if (row < 0 || row >= this.length) return Number.NaN;
    return this.#column(column)[this.#start + row] ?? Number.NaN;
  }

  set(column: number, row: number, value: number): void {
    if (row >= 0 && row < this.length) this.#column(column)[this.#start + row] = value;
  }

  last(column: number): number {
    return this.get(column, this.length - 1);
  }

  /** A view, not a copy: valid until the next push. */
  view(column: number, from = 0, to: number = this.length): Float64Array {
    return this.#column(column).subarray(this.#start + Math.max(0, from), this.#start + Math.min(this.length, to));
  }

  /** The first row whose value in a rising column is not below `value`. */
  lowerBound(column: number, value: number): number {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.get(column, middle) < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  clear(): void {
    this.#start = 0;
    this.#end = 0;
  }

  #column(place: number): Float64Array {
    const column = this.#columns[place];
    if (column === undefined) throw new RangeError(`no column ${place}`);
    return column;
  }

  #compact(): void {
    for (const column of this.#columns) column.copyWithin(0, this.#start, this.#end);
    this.#end -= this.#start;
    this.#start = 0;
  }
}
