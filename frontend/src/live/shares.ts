import { KINDS as TABLE } from "./numbers";
import { type Times, TimesFields } from "./protocol";
import type { Track } from "./track";

export type Kind = (typeof TABLE)[number]["name"];
export type Shares = Record<Kind, number>;

/** The kinds of time, in the order in which they are always shown. */
export const KINDS = TABLE.map(({ name, word, about }) => ({
  key: name as Kind,
  label: word.charAt(0).toUpperCase() + word.slice(1),
  about,
}));

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
