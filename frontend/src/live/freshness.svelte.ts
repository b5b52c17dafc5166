/** How old what is on the screen is. The page that is open says so; the badge in the bar shows it. */
class Freshness {
  /** Seconds since the newest data were taken; NaN where a page has no single age. */
  age = $state(Number.NaN);
  /** True if the data are older than they should be. */
  stale = $state(false);
  /** Why nothing new is expected (finished, lost); empty otherwise. */
  ended = $state("");

  clear(): void {
    this.age = Number.NaN;
    this.stale = false;
    this.ended = "";
  }
}

export const freshness = new Freshness();
