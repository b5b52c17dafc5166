import { describe, expect, it } from "vitest";
import { SPAN, SpanLog } from "../src/live/spans";

function sent(log: SpanLog, worker: number, at: number) {
  const span = { worker, epoch: 0, batch: 0, start_us: 0, fetched_us: 1, collated_us: 2, sent_us: 3, yielded_us: -1 };
  log.add({ kind: "spans", at, base: at, spans: [span], stride: 1, late: [] });
  return span;
}

describe("a batch that is told before it is yielded", () => {
  it("gets that moment later, by whatever base it is told", () => {
    const log = new SpanLog();
    sent(log, 0, 10);
    const span = sent(log, 1, 10);
    log.add({ kind: "spans", at: 12, base: 11, spans: [], stride: 1, late: [{ ...span, sent_us: 5, yielded_us: 250_005 }] });
    expect(log.ring.length).toBe(2);
    expect(log.ring.get(SPAN.yielded, 0)).toBeNaN();
    expect(log.ring.get(SPAN.yielded, 1)).toBeCloseTo(10.250003, 6);
  });
});

describe("lanes", () => {
  it("are of workers that sent something in the stretch, those that have left included", () => {
    const log = new SpanLog();
    sent(log, 3, 10);
    sent(log, 1, 20);
    sent(log, 0, 30);
    sent(log, 3, 31);
    expect(log.workersSince(25).sort()).toEqual([0, 3]);
    expect(log.workersSince(0).sort()).toEqual([0, 1, 3]);
    expect(log.workersSince(32)).toEqual([]);
    log.clear();
    expect(log.workersSince(0)).toEqual([]);
  });
});
