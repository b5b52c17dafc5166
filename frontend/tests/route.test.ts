import { describe, expect, it } from "vitest";
import { href, parse, secretIn } from "../src/route";

describe("addresses", () => {
  it("name a page and survive any loader name", () => {
    for (const id of ["run:0:train", "a/b:1:x y", "ü:2:%"]) expect(parse(href({ page: "loader", id }))).toEqual({ page: "loader", id });
    expect(parse("")).toEqual({ page: "overview" });
    expect(parse("#/loader/%E0%A4%A")).toEqual({ page: "overview" });
  });

  it("may carry a token", () => {
    expect(secretIn("#token=abc-_123")).toEqual({ token: "abc-_123" });
    expect(secretIn("#once=abc-_123")).toEqual({ once: "abc-_123" });
    expect(secretIn("#/?token=abc")).toEqual({ token: "abc" });
    expect(secretIn("#/loader/token=1")).toBeNull();
  });
});
