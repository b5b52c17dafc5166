/** Hash routes: they need nothing from the server and survive any proxy prefix. */

export type Route = { page: "overview" } | { page: "compare" } | { page: "loader"; id: string };

export function parse(hash: string): Route {
  if (/^#\/compare(?:\?.*)?$/.test(hash)) return { page: "compare" };
  const match = /^#\/loader\/([^/?]+)(?:\?.*)?$/.exec(hash);
  if (match?.[1] === undefined) return { page: "overview" };
  try {
    return { page: "loader", id: decodeURIComponent(match[1]) };
  } catch {
    return { page: "overview" };
  }
}

export function href(route: Route): string {
  if (route.page === "compare") return "#/compare";
  return route.page === "loader" ? `#/loader/${encodeURIComponent(route.id)}` : "#/";
}

/** The page that compares two stretches of time, written as in `insight/stretches.py`. */
export function comparing(a: string, b: string): string {
  return looking(href({ page: "compare" }), { a, b });
}

/** What of a page is looked at (range, zoom, filter, order), as it stands behind the `?` of an address. */
export type Look = Readonly<Record<string, string>>;

export function lookIn(hash: string): Look {
  const place = hash.indexOf("?");
  return place < 0 || secretIn(hash) !== null ? {} : Object.fromEntries(new URLSearchParams(hash.slice(place + 1)));
}

/** The address of the same page with something else of it looked at; null takes a name out. */
export function looking(hash: string, changes: Readonly<Record<string, string | null>>): string {
  const kept = new URLSearchParams(lookIn(hash) as Record<string, string>);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") kept.delete(name);
    else kept.set(name, value);
  }
  // Commas and colons are safe behind a hash, and a person may have to read it.
  const query = kept.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%40", "@");
  const [page = ""] = hash.split("?", 1);
  return `${page === "" || page === "#" ? "#/" : page}${query === "" ? "" : `?${query}`}`;
}

/** The page that a link which signs in leads to: `#once=…&loader=…`, or the overview. */
export function pageBehind(hash: string): Route {
  const match = /[#&]loader=([^&]+)/.exec(hash);
  return match?.[1] === undefined ? { page: "overview" } : parse(`#/loader/${match[1]}`);
}

/** What signs in, if it is in the address: the code of a link that works once, `#once=…`, or a token, `#token=…`. */
export function secretIn(hash: string): { token: string } | { once: string } | null {
  const match = /^#\/?\??(token|once)=([^&]+)/.exec(hash);
  if (match?.[2] === undefined) return null;
  const value = decodeURIComponent(match[2]);
  return match[1] === "once" ? { once: value } : { token: value };
}
