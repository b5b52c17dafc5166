import type { LoaderRow, Snapshot } from "./protocol";
import type { RateKey } from "./track";

/** Whether a field says anything, named as in the protocol: `queues.data`, `workers`. Of a watched loader not all do. */
export function knows(snapshot: Snapshot, name: string): boolean {
  return !(snapshot.unknown ?? []).some((each) => name === each || name.startsWith(`${each}.`));
}

/** What every rate is worked out from; the others are known of every loader. */
const FIELDS: Partial<Record<RateKey, string>> = {
  samples: "samples",
  bytes: "bytes",
  reorder_stall: "times.reorder_stall_us",
  pin_wait: "times.pin_wait_us",
  pin_bytes: "pin.bytes",
  busy: "workers.fetch_us",
  rss: "workers.rss",
  index: "queues.index",
  in_flight: "queues.in_flight",
  reorder: "queues.reorder",
  data: "queues.data",
  slots_bytes: "queues.slots_bytes",
  finished_bytes: "queues.finished_bytes",
  workers: "workers",
  processor: "workers.cpu_ms",
  queued: "workers.queued_ms",
  blocked: "workers.queued_ms",
  others: "processors.others_ms",
  allowed: "processors.allowed",
};

/** Rates that say nothing. */
export function unknownRates(snapshot: Snapshot): RateKey[] {
  return (Object.entries(FIELDS) as [RateKey, string][]).filter(([, field]) => !knows(snapshot, field)).map(([key]) => key);
}

/** Of a watched loader, a row does not say whether it has no workers or they are not seen. */
export function workersKnown(row: LoaderRow): boolean {
  return row.engine === "penstock" || row.workers > 0;
}
