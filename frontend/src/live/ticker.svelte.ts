import { now } from "./clock";

/** The time, for ages that tick: twice a second, and not at all while nobody looks. */
class Ticker {
  now = $state(now());

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.now = now();
    }, 500);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.now = now();
    });
  }
}

export const ticker = new Ticker();
