import { NUMBERS } from "./numbers";
import type { LoaderRow, Snapshot } from "./protocol";
import type { RateKey } from "./track";

/** Whether a field says anything, named as in the protocol: `queues.data`, `workers`. Of a watched loader not all do. */
export function knows(snapshot: Snapshot, name: string): boolean {
  return !(snapshot.unknown ?? []).some((each) => name === each || name.startsWith(`${each}.`));
}

/** Rates that say nothing. */
export function unknownRates(snapshot: Snapshot): RateKey[] {
  return NUMBERS.filter(({ field }) => !knows(snapshot, field)).map(({ name }) => name);
}

/** Whether it is seen how many there are: not of everything that is watched. */
export function workersKnown(row: LoaderRow): boolean {
  return !row.unknown.includes("workers");
}
