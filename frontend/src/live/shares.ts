import { type Times, TimesFields } from "./protocol";
import type { Track } from "./track";

/** The kinds of time, in the order in which they are always shown. */
export const KINDS = [
  { key: "compute", label: "Compute", about: "training's own time between two batches" },
  { key: "starvation", label: "Starvation", about: "waiting, and no batch at all is finished" },
  { key: "reorder_stall", label: "Reorder stall", about: "waiting for one batch while later ones are finished" },
  { key: "pin_wait", label: "Pin wait", about: "waiting for the pin stage" },
  { key: "paused", label: "Paused", about: "waiting because the pool is paused" },
  { key: "startup", label: "Startup", about: "before an epoch's first batch is finished" },
  { key: "sampler", label: "Sampler", about: "drawing from the sampler, which runs in the training thread" },
] as const;

export type Kind = (typeof KINDS)[number]["key"];
export type Shares = Record<Kind, number>;

/** Shares of a whole; null if there is no time to share out. */
export function normalised(parts: Shares): Shares | null {
  let total = 0;
  for (const { key } of KINDS) total += parts[key];
  if (!(total > 0)) return null;
  return Object.fromEntries(KINDS.map(({ key }) => [key, parts[key] / total])) as Shares;
}

export function sharesOfTimes(times: Times): Shares | null {
  const parts = Object.fromEntries(TimesFields.map((field) => [field.replace(/_us$/, ""), times[field]]));
  return normalised(parts as Shares);
}

export function sharesOfTrack(track: Track, from: number, to: number): Shares | null {
  const parts = Object.fromEntries(KINDS.map(({ key }) => [key, track.average(key, from, to)])) as Shares;
  return normalised(parts);
}

/** Share of the time in which training waits for data; a pause is not the data's fault. */
export function waitingShare(shares: Shares): number {
  const waiting = shares.starvation + shares.reorder_stall + shares.pin_wait + shares.startup + shares.sampler;
  const active = waiting + shares.compute;
  return active > 0 ? waiting / active : 0;
}
