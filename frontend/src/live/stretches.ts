import type { StoredEvent } from "./protocol";

/** A stretch of time as the address has it: a loader or a run, and behind an @ which time of it. */
export interface Stretch {
  who: string;
  /** `epoch:3`, `FROM-TO`, `before:AT`, `after:AT`; empty: all. */
  which: string;
}

export function parseStretch(text: string): Stretch {
  const place = text.indexOf("@");
  return place < 0 ? { who: text, which: "" } : { who: text.slice(0, place), which: text.slice(place + 1) };
}

export function writeStretch({ who, which }: Stretch): string {
  return which === "" ? who : `${who}@${which}`;
}

/** The time between two moments. */
export function between(from: number, to: number): string {
  return `${from.toFixed(2)}-${to.toFixed(2)}`;
}

export interface Offered {
  which: string;
  label: string;
}

/** What of a loader can be chosen, by what happened to it: the newest first. */
export function offered(events: readonly StoredEvent[]): Offered[] {
  const found = new Map<string, string>();
  for (const { event, text } of [...events].reverse()) {
    if (event.kind === "epoch" && event.what === "started") found.set(`epoch:${event.epoch}`, `epoch ${event.epoch}`);
    if (event.kind === "command" && event.action === "resize" && event.state === "applied") {
      found.set(`before:${event.at.toFixed(3)}`, `before: ${text}`);
      found.set(`after:${event.at.toFixed(3)}`, `after: ${text}`);
    }
  }
  return [{ which: "", label: "all that is stored" }, ...[...found].map(([which, label]) => ({ which, label }))];
}
