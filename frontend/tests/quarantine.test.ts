import { expect, test } from "vitest";
import type { Quarantined } from "../src/live/protocol";
import { matching } from "../src/live/quarantine";

const bad = (index: string, error: string): Quarantined => ({
  index, error, where: "dataset", traceback: "", times: 2, epoch: 0, batch: 1,
});

test("the newest come first, and every word must be found", () => {
  const all = [bad("3", "OSError: broken"), bad("17", "TimeoutError: too long"), bad("30", "OSError: cut off")];
  expect(matching(all, "").map(({ index }) => index)).toEqual(["30", "17", "3"]);
  expect(matching(all, "oserror").map(({ index }) => index)).toEqual(["30", "3"]);
  expect(matching(all, " OSError  cut ").map(({ index }) => index)).toEqual(["30"]);
  expect(matching(all, "nothing")).toEqual([]);
});
