import { describe, expect, it } from "vitest";
import { comparing, href, lookIn, looking, pageBehind, parse, secretIn } from "../src/route";

describe("addresses", () => {
  it("name a page and survive any loader name", () => {
    for (const id of ["run:0:train", "a/b:1:x y", "ü:2:%"]) expect(parse(href({ page: "loader", id }))).toEqual({ page: "loader", id });
    expect(parse("")).toEqual({ page: "overview" });
    expect(parse("#/loader/%E0%A4%A")).toEqual({ page: "overview" });
  });

  it("say what of a page is looked at, whichever page it is", () => {
    const page = href({ page: "loader", id: "run:0:a b" });
    const hash = looking(page, { from: "1789000000.25", to: "1789000060.00", events: "error,stall", range: null });
    expect(hash).toBe(`${page}?from=1789000000.25&to=1789000060.00&events=error,stall`);
    expect(parse(hash)).toEqual({ page: "loader", id: "run:0:a b" });
    expect(lookIn(hash)).toEqual({ from: "1789000000.25", to: "1789000060.00", events: "error,stall" });
    expect(looking(hash, { from: null, to: "", events: null })).toBe(page);
    expect(lookIn(looking("", { filter: "run & rank?#/ü" }))).toEqual({ filter: "run & rank?#/ü" });
    expect(parse(looking("", { filter: "x" }))).toEqual({ page: "overview" });
  });

  it("name two stretches of time", () => {
    const hash = comparing("run:0:train@before:17.5", "other");
    expect(hash).toBe("#/compare?a=run:0:train@before:17.5&b=other");
    expect(parse(hash)).toEqual({ page: "compare" });
    expect(lookIn(hash)).toEqual({ a: "run:0:train@before:17.5", b: "other" });
  });

  it("take no secret for something to look at", () => {
    expect(lookIn("#/?token=abc")).toEqual({});
    expect(looking("#/", { filter: "" })).toBe("#/");
  });

  it("may carry a token", () => {
    expect(secretIn("#token=abc-_123")).toEqual({ token: "abc-_123" });
    expect(secretIn("#once=abc-_123")).toEqual({ once: "abc-_123" });
    expect(secretIn("#/?token=abc")).toEqual({ token: "abc" });
    expect(secretIn("#/loader/token=1")).toBeNull();
    expect(secretIn("#once=abc&loader=demo%3A0%3Atrain")).toEqual({ once: "abc" });
    expect(pageBehind("#once=abc&loader=demo%3A0%3Atrain")).toEqual({ page: "loader", id: "demo:0:train" });
    expect(pageBehind("#once=abc")).toEqual({ page: "overview" });
  });
});
